"""Stored responses, for GET and previous_response_id: bounded in number, bytes and age.

In: a response and the items of its conversation. Out: the same by id, until expired or evicted.
Event loop only, so no lock.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec


class Identified(Protocol):
    """Protocol of responses with an id."""

    @property
    def id(self) -> str: ...


R = TypeVar("R", bound=Identified)


@dataclass(frozen=True)
class StoredResponse(Generic[R]):
    """A response, with the conversation up to and including it."""

    response: R
    items: list[dict[str, Any]]
    size: int
    expires: float


class ResponseStore(Generic[R]):
    """The newest /v1/responses objects, bounded in number, bytes and age."""

    def __init__(
        self,
        most: int,
        most_bytes: int,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._seconds = seconds
        self._clock = clock
        self._stored: OrderedDict[str, StoredResponse[R]] = OrderedDict()  # oldest first
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, response: R, items: list[dict[str, Any]]) -> None:
        """Store a response, evicting older ones if necessary."""
        self.remove(response.id)
        size = len(msgspec.json.encode((response, items)))
        self._stored[response.id] = StoredResponse(
            response, items, size, self._clock() + self._seconds
        )
        self.bytes += size
        while self._stored and (len(self) > self._most or self.bytes > self._most_bytes):
            self.remove(next(iter(self._stored)))

    def get(self, response_id: str) -> StoredResponse[R] | None:
        """Return a response unless it has expired."""
        self._expire()
        return self._stored.get(response_id)

    def remove(self, response_id: str) -> bool:
        """Delete a response. Returns whether it existed."""
        found = self._stored.pop(response_id, None)
        if found is not None:
            self.bytes -= found.size
        return found is not None

    def _expire(self) -> None:
        now = self._clock()
        while self._stored and next(iter(self._stored.values())).expires <= now:
            self.remove(next(iter(self._stored)))
