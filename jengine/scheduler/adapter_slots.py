"""Device slots of LoRA adapters: which adapter each slot holds, how many running requests use it,
and a gate that is fair to adapters without a slot.

In: requests that wait, start and leave. Out: which may run, lanes to unpark, and each running
request's slot, which its plan passes to the runner. A slot whose adapter has no running request is
reassigned in LRU order.

Requests whose adapter has no slot are parked; slots that become free go to adapters in the order of
their first waiting request. Requests of adapters with slots may overtake the first of these; after
`MOST_OVERTAKING` starts per row, the adapter with the fewest running requests is evicted: its later
requests wait too, and its slot is free once its running ones have ended. So the first waiting
adapter waits for at most that many starts plus the longest answer then running. Requests ahead of
it in the order (more urgent, or preempted) are not held back.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from jengine.request import Request
from jengine.scheduler.queue import WaitingQueue

# Starts per row that may overtake the first adapter without a slot, before one is evicted for it.
MOST_OVERTAKING = 4


class AdapterSlots:
    """Device slots of LoRA adapters, numbered from 1; 0 stands for no adapter."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count, 0, -1))
        self._slots: dict[str, int] = {}  # by adapter, the least recently used first
        self._users: dict[str, int] = {}  # running requests by adapter
        self._entered: list[str] = []
        self.num_starts = 0  # of requests with adapters

    @property
    def in_use(self) -> int:
        """Number of adapters with running requests."""
        return len(self._users)

    @property
    def num_takeable(self) -> int:
        """Slots that are empty or whose adapter has no running request."""
        return len(self._free) + len(self._slots) - len(self._users)

    @property
    def least_used(self) -> str:
        """The adapter in use with the fewest running requests."""
        return min(self._users, key=lambda adapter: self._users[adapter])

    def take_entered(self) -> list[str]:
        """Adapters that were given a slot since the last call."""
        entered, self._entered = self._entered, []
        return entered

    def have_room(self, request: Request) -> bool:
        """Whether the request's adapter has a slot or can get one."""
        adapter = request.wire.adapter
        return not adapter or adapter in self._slots or self.num_takeable > 0

    def take(self, request: Request) -> None:
        """Count the request as a user of its adapter's slot, assigning one if needed."""
        adapter = request.wire.adapter
        if not adapter:
            return
        self.num_starts += 1
        slot = self._slots.pop(adapter, 0)
        if not slot:
            slot = self._new_slot()
            self._entered.append(adapter)
        self._slots[adapter] = request.adapter_slot = slot
        self._users[adapter] = self._users.get(adapter, 0) + 1

    def give_back(self, request: Request) -> None:
        """Release the request's use of its adapter's slot."""
        if not request.adapter_slot:
            return
        request.adapter_slot = 0
        adapter = request.wire.adapter
        self._users[adapter] -= 1
        if not self._users[adapter]:
            del self._users[adapter]

    def _new_slot(self) -> int:
        if self._free:
            return self._free.pop()
        unused = next(adapter for adapter in self._slots if adapter not in self._users)
        return self._slots.pop(unused)


class SlotOf(NamedTuple):
    """Key: the request waits for a slot for this adapter."""

    adapter: str


class AdapterTurns:
    """Gate of requests with adapters. `take_turns` must be called before each step's admissions."""

    def __init__(self, slots: AdapterSlots, waiting: WaitingQueue, rows: int) -> None:
        self._slots = slots
        self._waiting = waiting
        self._most = MOST_OVERTAKING * rows
        self._first = ""  # the adapter that has been the first to wait since `_since` starts
        self._since = 0
        self._opened: list[SlotOf] = []  # for which a slot is free and not taken yet
        self._leaving = ""  # the adapter that must leave for it; "": none yet

    def awaited(self, request: Request) -> Hashable | None:
        adapter = request.wire.adapter
        if not adapter:
            return None
        if not self._slots.have_room(request):
            return SlotOf(adapter)
        return SlotOf(adapter) if adapter == self._leaving and self._is_behind(request) else None

    def take_turns(self) -> None:
        """Unpark adapters that can get a slot; maybe evict for the first that cannot."""
        for adapter in self._slots.take_entered():
            self._waiting.open(SlotOf(adapter))
        self._opened = [key for key in self._opened if self._waiting.is_open(key)]
        first = self._waiting.first_parked(SlotOf)
        while first is not None and len(self._opened) < self._slots.num_takeable:
            self._opened.append(SlotOf(first.wire.adapter))
            self._waiting.open(self._opened[-1])
            first = self._waiting.first_parked(SlotOf)
        self._reserve(first)

    def _reserve(self, first: Request | None) -> None:
        """Record the first waiting adapter; once it has waited long enough, choose one to evict."""
        adapter = "" if first is None else first.wire.adapter
        if adapter != self._first:
            self._first, self._since = adapter, self._slots.num_starts
            self._release()
        is_due = bool(adapter) and self._slots.num_starts - self._since >= self._most
        if is_due and not self._leaving:
            self._leaving = self._slots.least_used

    def _release(self) -> None:
        """Cancel the pending eviction of an adapter."""
        if self._leaving:
            leaving, self._leaving = self._leaving, ""
            self._waiting.open(SlotOf(leaving))

    def _is_behind(self, request: Request) -> bool:
        """Whether the request comes after the first one that is parked for an adapter slot."""
        first = self._waiting.first_parked(SlotOf)
        if first is None or first.wire.adapter != self._first:
            return False
        return self._waiting.order(first) < self._waiting.order(request)
