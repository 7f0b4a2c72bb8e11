"""Requests that wait for a row: first come first served, or the most urgent first.

In: requests. Out: the one to admit next. Must not know rows, blocks or budgets.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Literal, Protocol

from jengine.request import Request


class WaitingQueue(Protocol):
    """What the scheduler asks of a queue."""

    def push(self, request: Request) -> None:
        """Add a request that has just arrived."""

    def restore(self, request: Request) -> None:
        """Add a request that was preempted or passed over: before all that are no more urgent."""

    def peek(self) -> Request:
        """The next request, left in place."""

    def pop(self) -> Request:
        """Take the next request."""

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it is in the queue."""

    def ahead(self, count: int) -> Iterable[Request]:
        """The first `count` requests, or all, left in place."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...


class ArrivalQueue:
    """First come, first served."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, Request] = OrderedDict()

    def push(self, request: Request) -> None:
        self._requests[request.request_id] = request

    def restore(self, request: Request) -> None:
        self.push(request)
        self._requests.move_to_end(request.request_id, last=False)

    def peek(self) -> Request:
        return next(iter(self._requests.values()))

    def pop(self) -> Request:
        return self._requests.popitem(last=False)[1]

    def remove(self, request: Request) -> None:
        del self._requests[request.request_id]

    def ahead(self, count: int) -> Iterable[Request]:
        return islice(self._requests.values(), count)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())


class Place:
    """A request's place in the heap; without a request once it was removed."""

    __slots__ = ("request", "urgency")

    def __init__(self, request: Request) -> None:
        self.request: Request | None = request
        self.urgency = request.urgency

    def __lt__(self, other: Place) -> bool:
        return self.urgency < other.urgency


class UrgencyQueue:
    """The smallest `Request.urgency` first.

    A removed request leaves an empty place in the heap, until it comes to the top or there are more
    empty places than requests: so to remove all of them takes no longer than to add them.
    """

    def __init__(self) -> None:
        self._heap: list[Place] = []
        self._places: dict[str, Place] = {}

    def push(self, request: Request) -> None:
        place = self._places[request.request_id] = Place(request)
        heapq.heappush(self._heap, place)

    def restore(self, request: Request) -> None:
        self.push(request)

    def peek(self) -> Request:
        while (request := self._heap[0].request) is None:
            heapq.heappop(self._heap)
        return request

    def pop(self) -> Request:
        request = self.peek()
        heapq.heappop(self._heap)
        del self._places[request.request_id]
        return request

    def remove(self, request: Request) -> None:
        self._places.pop(request.request_id).request = None
        if len(self._heap) > 2 * len(self._places) + 16:
            self._heap = [place for place in self._heap if place.request is not None]
            heapq.heapify(self._heap)

    def ahead(self, count: int) -> Iterable[Request]:
        places = heapq.nsmallest(count, self._places.values())
        return (place.request for place in places if place.request is not None)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Request]:
        places = sorted(self._places.values())
        return (place.request for place in places if place.request is not None)


def waiting_queue(policy: Literal["fcfs", "priority"]) -> WaitingQueue:
    """The queue for a policy."""
    return UrgencyQueue() if policy == "priority" else ArrivalQueue()
