"""Where the drafts of plans come from: a proposer on the host, or the device itself.

In: a request, and how many drafts its next step may run. Out: the guesses that the plan carries.
Must not know budgets, blocks, or what comes of drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from jengine.request import Request
from jengine.speculative.proposer import Proposer, RowProposer

# Row, guesses at the tokens that follow its known ones (None: those that its last step has made),
# and the most drafts -> the drafts that its grammar lets it run.
CheckDrafts = Callable[[int, Sequence[int] | None, int], list[int]]


class RowGuesses(Protocol):
    """Guesses at the text of one request."""

    def window(self, request: Request, count: int) -> tuple[int, list[int]]:
        """How many of `count` drafts the next step can run, and the guesses that the plan carries:
        from the earliest position at which the row can go on."""

    def expect(self, count: int) -> None:
        """A step that samples for the row makes so many guesses at its end."""

    def close(self, request: Request) -> None:
        """The request has ended."""


class Guesses(Protocol):
    """A source of guesses, for all requests of an engine."""

    # Whether each step guesses for the next one, at its end and so never from a rejected draft.
    on_device: bool
    # Whether a step that the model that guesses has not read makes its later guesses worse.
    has_cache: bool

    def serves(self, request: Request) -> bool:
        """Whether it guesses for this request."""

    def begin(self, request: Request) -> RowGuesses:
        """A request that runs."""


class HostGuesses:
    """A proposer's guesses, from the tokens that the host knows. `check` is asked about those of
    requests with a grammar; without it they get none."""

    on_device = has_cache = False

    def __init__(self, proposer: Proposer, check: CheckDrafts | None = None) -> None:
        self.proposer = proposer
        self._check = check

    def serves(self, request: Request) -> bool:
        """All but those with a grammar that nobody here follows."""
        return self._check is not None or not request.reads_each_token

    def begin(self, request: Request) -> HostRow:
        """A request that runs."""
        row = self.proposer.begin(request.token_ids, request.prompt_length)
        return HostRow(request, row, self._check if request.reads_each_token else None)


class HostRow:
    """One request's proposer, and how much of its text it has seen."""

    __slots__ = ("_check", "_proposer", "_seen")

    def __init__(
        self, request: Request, proposer: RowProposer, check: CheckDrafts | None = None
    ) -> None:
        self._check = check
        self._proposer = proposer
        self._seen = request.num_known

    def window(self, request: Request, count: int) -> tuple[int, list[int]]:
        """The row may have drafts in flight, so its real length is between the tokens that it
        surely has and the one if all are accepted. The guesses cover the drafts after each."""
        surely = request.num_known + request.num_in_flight
        uncertain = request.num_computed + 1 - surely
        self._catch_up(request)
        guesses = self._proposer.propose(count, request.num_in_flight + uncertain)
        window = guesses[request.num_in_flight :].tolist()
        if self._check is not None:  # nothing of it is in flight: these follow its last token
            window = self._check(request.row, window, count)
        return min(count, len(window)), window

    def expect(self, count: int) -> None:
        """Guesses are made when a plan needs them."""

    def close(self, request: Request) -> None:
        """The request has ended."""
        self._catch_up(request)
        self._proposer.close()

    def _catch_up(self, request: Request) -> None:
        """Give the proposer all committed tokens."""
        if self._seen < request.num_known:
            self._proposer.extend(request.token_ids[self._seen :])
            self._seen = request.num_known


class DeviceGuesses:
    """Each step guesses for the next one, whatever it has accepted: plans carry no guesses. Those
    for requests with a grammar are read with the step's tokens, and `check` says how many of them
    may run; without it they get none."""

    on_device = True

    def __init__(self, check: CheckDrafts | None = None, *, has_cache: bool = True) -> None:
        self.has_cache = has_cache
        self._check = check

    def serves(self, request: Request) -> bool:
        """All but those with a grammar that nobody here follows."""
        return self._check is not None or not request.reads_each_token

    def begin(self, request: Request) -> DeviceRow:
        """A request that runs."""
        return DeviceRow(self._check if request.reads_each_token else None)


class DeviceRow:
    """How many guesses the row's last step has made."""

    __slots__ = ("_check", "_made")

    def __init__(self, check: CheckDrafts | None = None) -> None:
        self._check = check
        self._made = 0

    def window(self, request: Request, count: int) -> tuple[int, list[int]]:
        """At most as many drafts as there are guesses."""
        count = min(count, self._made)
        if self._check is not None and count:
            count = len(self._check(request.row, None, count))
        return count, []

    def expect(self, count: int) -> None:
        """A step that samples for the row makes so many guesses at its end."""
        self._made = count

    def close(self, request: Request) -> None:
        """Nothing of it is kept."""
