"""Requests that wait for a row: first come first served, or the most urgent first.

In: requests. Out: the one to admit next. Must not know rows, blocks or budgets.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
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
        """Take a request from wherever it is."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...


class ArrivalQueue:
    """First come, first served."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    def push(self, request: Request) -> None:
        self._requests.append(request)

    def restore(self, request: Request) -> None:
        self._requests.appendleft(request)

    def peek(self) -> Request:
        return self._requests[0]

    def pop(self) -> Request:
        return self._requests.popleft()

    def remove(self, request: Request) -> None:
        self._requests.remove(request)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


class UrgencyQueue:
    """The smallest `Request.urgency` first. It is unique, so requests are never compared."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, float, int], Request]] = []

    def push(self, request: Request) -> None:
        heapq.heappush(self._heap, (request.urgency, request))

    def restore(self, request: Request) -> None:
        self.push(request)

    def peek(self) -> Request:
        return self._heap[0][1]

    def pop(self) -> Request:
        return heapq.heappop(self._heap)[1]

    def remove(self, request: Request) -> None:
        self._heap.remove((request.urgency, request))
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in sorted(self._heap, key=lambda item: item[0]))


def waiting_queue(policy: Literal["fcfs", "priority"]) -> WaitingQueue:
    """The queue for a policy."""
    return UrgencyQueue() if policy == "priority" else ArrivalQueue()
