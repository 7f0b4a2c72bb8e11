"""Queue of deltas from cores in other processes for the one thread that reads outputs.

In: deltas and errors, from socket threads. Out: the same in order; a reader does not wait if no
request is open, steps are paused or the core is dead. Must not know sockets or processes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from jengine.errors import EngineDead, JengineError, RequestError
from jengine.outputs import TokenDelta


class Mailbox:
    """Unread deltas, and the ids of requests without a final delta."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._news: deque[Sequence[TokenDelta] | JengineError] = deque()
        self._open: set[str] = set()
        self._paused = False
        self._failure: EngineDead | None = None

    @property
    def has_work(self) -> bool:
        """Whether deltas are queued or expected."""
        return bool(self._open or self._news)

    def expect(self, request_id: str) -> None:
        """Register an open request. Raises RequestError for a duplicate id."""
        with self._changed:
            if request_id in self._open:
                raise RequestError(f"request_id={request_id!r} is being answered already.")
            self._open.add(request_id)

    def deliver(self, deltas: Sequence[TokenDelta]) -> None:
        """Add deltas; a final delta closes its request."""
        with self._changed:
            self._open.difference_update(
                delta.request_id for delta in deltas if delta.finish_reason is not None
            )
            self._news.append(deltas)
            self._changed.notify_all()

    def interrupt(self, error: JengineError) -> None:
        """Queue an error, raised once to the reader after earlier deltas."""
        with self._changed:
            self._news.append(error)
            self._changed.notify_all()

    def fail(self, error: EngineDead) -> None:
        """Mark the end: the reader gets this error after all earlier deltas."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def pause(self, paused: bool) -> None:
        """While paused a reader does not wait, as no steps run."""
        with self._changed:
            self._paused = paused
            self._changed.notify_all()

    def take(self, wait: bool) -> list[TokenDelta]:
        """Take everything up to the next error, waiting while something may still come."""
        with self._changed:
            self._changed.wait_for(lambda: not wait or self._is_due)
            if not self._news and self._failure is not None:
                self._open.clear()  # raised once; later requests are refused
                raise self._failure
            found: list[TokenDelta] = []
            while self._news and not (found and isinstance(self._news[0], JengineError)):
                item = self._news.popleft()
                if isinstance(item, JengineError):
                    raise item
                found += item
            return found

    @property
    def _is_due(self) -> bool:
        return bool(self._news or self._failure or self._paused or not self._open)
