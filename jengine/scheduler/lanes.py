"""Heaps of waiting requests, one (a lane) per key that they wait for, and heaps of lanes.

In: entries with sort keys. Out: the first entry of a lane, the first lane of a heap. Adding,
removing and finding the first take logarithmic time. Must not know requests' insides, or why one
waits.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from itertools import count
from typing import Any

from jengine.request import Request


class LaneEntry:
    """Heap entry. `request` is None after lazy deletion."""

    __slots__ = ("lane", "order", "request")

    def __init__(self, request: Request, order: Any) -> None:
        self.request: Request | None = request
        self.order = order  # smaller is earlier
        self.lane: Lane | None = None

    def __lt__(self, other: LaneEntry) -> bool:
        return self.order < other.order


class Lane:
    """Min-heap of the requests that wait for the same `key`, with lazy deletion.

    Deleted entries are purged once they outnumber the others, so emptying a lane costs as much as
    filling it.
    """

    __slots__ = ("heap", "key", "line", "number", "size")

    def __init__(self, key: Hashable, number: int) -> None:
        self.key, self.number = key, number
        self.heap: list[LaneEntry] = []
        self.size = 0
        self.line: LaneHeap | None = None

    def add(self, place: LaneEntry) -> None:
        heapq.heappush(self.heap, place)
        place.lane = self
        self.size += 1

    def drop(self, place: LaneEntry) -> LaneEntry:
        """Delete a request lazily. Returns a new entry for it, for another lane."""
        assert place.lane is self and place.request is not None
        moved = LaneEntry(place.request, place.order)
        place.request = place.lane = None
        self.size -= 1
        if len(self.heap) > 2 * self.size + 16:
            self.heap = [one for one in self.heap if one.request is not None]
            heapq.heapify(self.heap)
        return moved

    @property
    def first(self) -> LaneEntry | None:
        """Smallest live entry."""
        heap = self.heap
        while heap and heap[0].request is None:
            heapq.heappop(heap)
        return heap[0] if heap else None


class LaneHeap:
    """Heap of lanes by their smallest entries. Stale entries are purged lazily."""

    def __init__(self) -> None:
        self._heads: list[tuple[LaneEntry, int, Lane]] = []
        self._lanes: dict[int, Lane] = {}

    def __len__(self) -> int:
        return len(self._lanes)

    def enter(self, lane: Lane) -> None:
        """Add a lane, removing it from the heap that it was in."""
        if lane.line is not None:
            lane.line.leave(lane)
        lane.line = self
        self._lanes[lane.number] = lane
        self.note(lane)

    def leave(self, lane: Lane) -> None:
        del self._lanes[lane.number]
        lane.line = None
        self._tidy()

    def note(self, lane: Lane) -> None:
        """Re-push a lane whose smallest entry has changed."""
        first = lane.first
        if first is not None:
            heapq.heappush(self._heads, (first, lane.number, lane))
        self._tidy()

    def lanes(self) -> list[Lane]:
        """All lanes, unordered."""
        return list(self._lanes.values())

    @property
    def first(self) -> Lane | None:
        """Lane with the smallest entry; None if all are empty."""
        while self._heads:
            place, _, lane = self._heads[0]
            if self._is_right(place, lane):
                return lane
            heapq.heappop(self._heads)
        return None

    def places(self) -> Iterator[LaneEntry]:
        """All entries in order, lazily: the first few are cheap."""
        # Heaps are read as the trees that they are: an entry comes before its two children.
        found: list[tuple[LaneEntry, int, list[Any], int]] = []
        numbers, seen = count(), set[int]()

        def visit(heap: list[Any], index: int) -> None:
            if index < len(heap):
                place = heap[index][0] if heap is self._heads else heap[index]
                heapq.heappush(found, (place, next(numbers), heap, index))

        visit(self._heads, 0)
        while found:
            place, _, heap, index = heapq.heappop(found)
            visit(heap, 2 * index + 1)
            visit(heap, 2 * index + 2)
            if heap is not self._heads:
                if place.request is not None:
                    yield place
            elif self._is_right(place, lane := heap[index][2]) and lane.number not in seen:
                seen.add(lane.number)
                visit(lane.heap, 0)

    def _tidy(self) -> None:
        if len(self._heads) > 2 * len(self._lanes) + 16:
            self._heads = [
                (first, lane.number, lane)
                for lane in self._lanes.values()
                if (first := lane.first) is not None
            ]
            heapq.heapify(self._heads)

    def _is_right(self, place: LaneEntry, lane: Lane) -> bool:
        return lane.line is self and lane.first is place
