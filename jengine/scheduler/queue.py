"""Waiting queue in the order of a policy, with parking.

In: requests, and keys of what they wait for. Out: the next one to admit. Must not know rows, blocks
or budgets, or what a key stands for.

A request that cannot run is **parked** under a key that names what it waits for. No step looks at
it until the key is woken, from any thread: then its lane rejoins the order. If the first of its
requests is refused again, the lane is parked again as a whole, so a wake-up or refusal costs the
same for any number of requests.

Requests of one key are a **lane**. Adding one, taking one out and finding the first take time that
grows with the logarithm of their number.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import count, islice
from typing import Any, NamedTuple

from jengine.errors import RequestError
from jengine.request import Request
from jengine.scheduler.orders import Order

NOTHING = None  # the key of requests that wait for a row alone


class Polled(NamedTuple):
    """Parking key that is checked at every step, for conditions that no event announces. Use at
    most one per row."""

    what: Hashable


class WaitingQueue:
    """Waiting requests: those that may run, in order, and the parked ones."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._places: dict[str, LaneEntry] = {}  # by request
        self._lanes: dict[Hashable, Lane] = {}  # by key
        self._open = LaneHeap()
        self._parked: dict[type, LaneHeap] = defaultdict(LaneHeap)  # by the keys' type
        self._woken: deque[Hashable] = deque()
        self.tell: Callable[[], object] = lambda: None  # called at each wake-up, from any thread
        self._made = 0
        self.num_parked = 0

    def push(self, request: Request) -> None:
        """Add an arriving request. Raises RequestError if the order refuses it."""
        try:
            key = self._order.arrived(request)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise RequestError(
                f"scheduling_policy has no place for this request: {what}"
            ) from error
        self._add(request, key)

    def restore(self, request: Request) -> None:
        """Add a request that was preempted."""
        self._add(request, self._order.restored(request))

    def peek(self) -> Request | None:
        """Return the next request that is not parked, without removing it."""
        return self._open.first

    def remove(self, request: Request) -> LaneEntry:
        """Take a request out, wherever it is. Returns its place in the order."""
        place = self._places.pop(request.request_id)
        lane = place.lane
        assert lane is not None and lane.line is not None, "a waiting request is in a lane"
        was_first = lane.first is place
        self.num_parked -= lane.line is not self._open
        moved = lane.drop(place)
        if not lane.size:
            lane.line.leave(lane)
            del self._lanes[lane.key]
        elif was_first:
            lane.line.note(lane)
        return moved

    def park(self, request: Request, key: Hashable) -> bool:
        """Park a request and all others of this key until the key is woken. Returns whether it was
        not parked under this key before."""
        place = self._places[request.request_id]
        moves = place.lane is None or place.lane.key != key
        if moves:
            self._enter(self.remove(request), key)
        lane = self._lanes[key]
        if lane.line is self._open:
            self._parked[type(key)].enter(lane)
            self.num_parked += lane.size
        return moves

    def wake(self, key: Hashable) -> None:
        """Mark a key's requests to be unparked by the next step. Thread-safe."""
        self._woken.append(key)
        self.tell()

    @property
    def is_polled(self) -> bool:
        """Whether requests are parked under polled keys."""
        return bool(self._parked[Polled])

    def hear(self) -> None:
        """Unpark the requests whose keys were woken, and those of polled keys."""
        while self._woken:
            self.open(self._woken.popleft())
        for lane in self._parked[Polled].lanes():
            self.open(lane.key)

    def open(self, key: Hashable) -> None:
        """Unpark all requests of a key."""
        lane = self._lanes.get(key)
        if lane is not None and lane.line is not self._open:
            self._open.enter(lane)
            self.num_parked -= lane.size

    def is_open(self, key: Hashable) -> bool:
        """Whether the event that requests parked under this key wait for has occurred, so that the
        scheduler tries them again."""
        lane = self._lanes.get(key)
        return lane is not None and lane.line is self._open

    def first_parked(self, kind: type) -> Request | None:
        """Return the first request that is parked under a key of this type."""
        return self._parked[kind].first

    def order(self, request: Request) -> Any:
        """A request's place, as a sort key."""
        return self._places[request.request_id].order

    def ahead(self, count: int) -> Iterable[Request]:
        """Return the first `count` requests that are not parked, without removing them."""
        found = (place.request for place in self._open.places())
        return islice((request for request in found if request is not None), count)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Request]:
        places = sorted(self._places.values())
        return (place.request for place in places if place.request is not None)

    def _add(self, request: Request, key: Any) -> None:
        self._enter(LaneEntry(request, (key, request.admission_order)), NOTHING)

    def _enter(self, place: LaneEntry, key: Hashable) -> None:
        assert place.request is not None
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key, self._made)
            self._made += 1
            lane.add(place)
            self._open.enter(lane)
        else:
            lane.add(place)
            assert lane.line is not None, "a lane with requests is in a line"
            if lane.first is place:
                lane.line.note(lane)
            self.num_parked += lane.line is not self._open
        self._places[place.request.request_id] = place


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
    def first(self) -> Request | None:
        """Request with the smallest entry; None if all lanes are empty."""
        while self._heads:
            place, _, lane = self._heads[0]
            if self._is_right(place, lane):
                return place.request
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
