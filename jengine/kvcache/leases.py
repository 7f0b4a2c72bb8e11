"""Holders of cache units: running requests, and ended ones that steps in flight still use.

In: requests that begin and end, steps that end. Out: holder numbers, under which groups keep units.
Must not know groups, or what they keep.
"""

from __future__ import annotations

from collections import deque

from jengine.request import Request


class Lease:
    """Bookkeeping of one request's units; the groups own the units."""

    __slots__ = ("findable", "holder")

    def __init__(self, holder: int, findable: bool) -> None:
        self.holder = holder
        self.findable = findable  # whether its blocks may be published at all


class Leases:
    """Registry of holders. Holder numbers are never reused."""

    def __init__(self) -> None:
        self.next_holder = 0  # the number of the next request that begins
        self._running: dict[str, Lease] = {}
        # Holders of ended requests, by the step after which their units are freed.
        self._pinned: deque[tuple[int, int]] = deque()

    def __bool__(self) -> bool:
        """Whether any request holds units."""
        return bool(self._running or self._pinned)

    def get(self, request: Request) -> Lease | None:
        return self._running.get(request.request_id)

    def of(self, request: Request) -> Lease:
        """The record of a running request."""
        return self._running[request.request_id]

    def begin(self, request: Request, *, findable: bool) -> None:
        """Register a request. `findable`: its blocks may be published."""
        self._running[request.request_id] = Lease(self.next_holder, findable)
        self.next_holder += 1

    def end(self, request: Request) -> int:
        """Unregister a request. Returns its holder number, to free its units or `pin` them."""
        return self._running.pop(request.request_id).holder

    def pin(self, holder: int, step: int) -> None:
        """Keep an ended request's units until this step is committed."""
        self._pinned.append((step, holder))

    def due(self, step: int) -> list[int]:
        """Remove and return the holders pinned until this step or an earlier one."""
        if not self._pinned:
            return []
        due = [holder for last, holder in self._pinned if last <= step]
        self._pinned = deque(pinned for pinned in self._pinned if pinned[0] > step)
        return due

    def hide(self, request: Request) -> None:
        """Stop publishing blocks of a request."""
        lease = self.get(request)
        if lease is not None:
            lease.findable = False

    def hide_all(self) -> None:
        """Stop publishing blocks of all running requests."""
        for lease in self._running.values():
            lease.findable = False
