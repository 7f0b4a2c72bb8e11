"""Admission gate for requests with LoRA adapters, fair to adapters without a slot.

In: waiting requests, the slots in use. Out: which requests may run, and lanes to unpark. Requests
whose adapter has no slot are parked; slots that become free go to adapters in the order of their
first waiting request. Requests of adapters with slots may overtake the first of these; after
`MOST_OVERTAKING` starts per row, the adapter with the fewest running requests is evicted: its later
requests wait too, and its slot is free once its running ones have ended. So the first waiting
adapter waits for at most that many starts plus the longest answer then running. Requests ahead of
it in the order (more urgent, or preempted) are not held back.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from jengine.request import Request
from jengine.scheduler.adapter_slots import AdapterSlots
from jengine.scheduler.queue import WaitingQueue

# Requests per row that may start before the adapter that is the first to wait gets its turn.
MOST_OVERTAKING = 4


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
