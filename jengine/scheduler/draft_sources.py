"""Sources of draft tokens: a proposer on the host, or the device itself.

In: a request, and how many drafts its next step may run. Out: the drafts that the plan carries.
Must not know budgets, blocks, or acceptance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from jengine.request import Request
from jengine.speculative.proposer import Proposer, RowProposer

# Row, drafts of the tokens that follow its known ones (None: those that its last step has made),
# and the most drafts -> the drafts that its grammar lets it run.
CheckDrafts = Callable[[int, Sequence[int] | None, int], list[int]]


class OfferedDrafts(Protocol):
    """Draft source of one request."""

    def window(self, request: Request, count: int) -> tuple[int, list[int]]:
        """Return how many of `count` drafts the next step can run, and the drafts, which start at
        the row's earliest possible position."""

    def expect(self, count: int) -> None:
        """The planned step will draft `count` tokens for this row on the device."""

    def close(self, request: Request) -> None:
        """The request has ended."""


class DraftSource(Protocol):
    """Draft source of all requests."""

    # Whether steps draft on the device, at their end, and so never after a rejected draft.
    on_device: bool
    # Whether a step that the model that drafts has not read makes its later drafts worse.
    has_cache: bool

    def serves(self, request: Request) -> bool:
        """Whether this request gets drafts."""

    def begin(self, request: Request) -> OfferedDrafts:
        """Start drafting for an admitted request."""


class HostDrafts:
    """Drafts of a host proposer (n-gram, suffix). `check` trims those of requests with a grammar;
    without it they get none."""

    on_device = has_cache = False

    def __init__(self, proposer: Proposer, check: CheckDrafts | None = None) -> None:
        self.proposer = proposer
        self._check = check

    def serves(self, request: Request) -> bool:
        return self._check is not None or not request.reads_each_token

    def begin(self, request: Request) -> HostRow:
        row = self.proposer.begin(request.token_ids, request.prompt_length)
        return HostRow(request, row, self._check if request.reads_each_token else None)


class HostRow:
    """A request's proposer, and the number of tokens fed to it."""

    __slots__ = ("_check", "_proposer", "_seen")

    def __init__(
        self, request: Request, proposer: RowProposer, check: CheckDrafts | None = None
    ) -> None:
        self._check = check
        self._proposer = proposer
        self._seen = request.num_known

    def window(self, request: Request, count: int) -> tuple[int, list[int]]:
        """Drafts from the committed length on.

        With drafts in flight the row's length is between the committed one and that if all are
        accepted; the drafts cover each case.
        """
        surely = request.num_known + request.num_in_flight
        uncertain = request.num_computed + 1 - surely
        self._catch_up(request)
        next_drafts = self._proposer.propose(count, request.num_in_flight + uncertain)
        window = next_drafts[request.num_in_flight :].tolist()
        if self._check is not None:  # nothing of it is in flight: these follow its last token
            window = self._check(request.row, window, count)
        return min(count, len(window)), window

    def expect(self, count: int) -> None:
        """No-op: drafts are made when a plan needs them."""

    def close(self, request: Request) -> None:
        self._catch_up(request)
        self._proposer.close()

    def _catch_up(self, request: Request) -> None:
        """Feed newly committed tokens to the proposer."""
        if self._seen < request.num_known:
            self._proposer.extend(request.token_ids[self._seen :])
            self._seen = request.num_known


class DeviceDrafts:
    """Drafts that each step makes on the device for the next one; plans carry only their number.

    Those of requests with a grammar are read back and trimmed by `check`; without it they get none.
    """

    on_device = True

    def __init__(self, check: CheckDrafts | None = None, *, has_cache: bool = True) -> None:
        self.has_cache = has_cache
        self._check = check

    def serves(self, request: Request) -> bool:
        return self._check is not None or not request.reads_each_token

    def begin(self, request: Request) -> DeviceRow:
        return DeviceRow(self._check if request.reads_each_token else None)


class DeviceRow:
    """Number of drafts that the row's last step has made."""

    __slots__ = ("_check", "_made")

    def __init__(self, check: CheckDrafts | None = None) -> None:
        self._check = check
        self._made = 0

    def window(self, request: Request, count: int) -> tuple[int, list[int]]:
        """At most as many drafts as the row's last step has made."""
        count = min(count, self._made)
        if self._check is not None and count:
            count = len(self._check(request.row, None, count))
        return count, []

    def expect(self, count: int) -> None:
        self._made = count

    def close(self, request: Request) -> None:
        """Do nothing: no state is kept per request."""
