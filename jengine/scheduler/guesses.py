"""Where the drafts of plans come from: a proposer on the host, or the device itself.

In: a request, and how many drafts its next step may run. Out: the guesses that the plan carries.
Must not know budgets, blocks, or what comes of drafts.
"""

from __future__ import annotations

from typing import Protocol

from jengine.request import Request
from jengine.speculative.proposer import Proposer, RowProposer


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

    def begin(self, request: Request) -> RowGuesses:
        """A request that runs."""


class HostGuesses:
    """A proposer's guesses, from the tokens that the host knows."""

    on_device = False

    def __init__(self, proposer: Proposer) -> None:
        self.proposer = proposer

    def begin(self, request: Request) -> HostRow:
        """A request that runs."""
        return HostRow(request, self.proposer.begin(request.token_ids, request.prompt_length))


class HostRow:
    """One request's proposer, and how much of its text it has seen."""

    __slots__ = ("_proposer", "_seen")

    def __init__(self, request: Request, proposer: RowProposer) -> None:
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
    """Each step guesses for the next one, whatever it has accepted: plans carry no guesses."""

    on_device = True

    def begin(self, request: Request) -> DeviceRow:
        """A request that runs."""
        return DeviceRow()


class DeviceRow:
    """How many guesses the row's last step has made."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made = 0

    def window(self, request: Request, count: int) -> tuple[int, list[int]]:
        """At most as many drafts as there are guesses."""
        return min(count, self._made), []

    def expect(self, count: int) -> None:
        """A step that samples for the row makes so many guesses at its end."""
        self._made = count

    def close(self, request: Request) -> None:
        """Nothing of it is kept."""
