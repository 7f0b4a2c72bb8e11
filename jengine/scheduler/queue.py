"""Waiting queue in the order of a policy, with parking.

In: requests, and keys of what they wait for. Out: the next one to admit. Must not know rows, blocks
or budgets, or what a key stands for.

A request that cannot run is **parked** under a key that names what it waits for. No step looks at
it until the key is woken, from any thread: then its lane rejoins the order. If the first of its
requests is refused again, the lane is parked again as a whole, so a wake-up or refusal costs the
same for any number of requests.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from jengine.errors import RequestError
from jengine.request import Request
from jengine.scheduler.lanes import Lane, LaneEntry, LaneHeap
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
        lane = self._open.first
        place = None if lane is None else lane.first
        return None if place is None else place.request

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it is."""
        self._leave(request)

    def park(self, request: Request, key: Hashable) -> bool:
        """Park a request and all others of this key until the key is woken. Returns whether it was
        not parked under this key before."""
        place = self._places[request.request_id]
        moves = place.lane is None or place.lane.key != key
        if moves:
            self._enter(self._leave(request), key)
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
        lane = self._parked[kind].first
        place = None if lane is None else lane.first
        return None if place is None else place.request

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

    def _leave(self, request: Request) -> LaneEntry:
        """Remove a request. Returns its place in the order."""
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
