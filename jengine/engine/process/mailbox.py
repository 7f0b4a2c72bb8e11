"""Where the deltas of cores in other processes wait for the thread that reads outputs.

In: deltas and errors, from threads of sockets. Out: the same in order, to one reader, which never
waits for what cannot come any more. Must not know sockets or processes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from jengine.errors import EngineDead, JengineError, RequestError
from jengine.outputs import TokenDelta


class Mailbox:
    """Deltas that were not read yet, and the requests whose last one has not come."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._news: deque[Sequence[TokenDelta] | JengineError] = deque()
        self._open: set[str] = set()
        self._paused = False
        self._failure: EngineDead | None = None

    @property
    def has_work(self) -> bool:
        """Whether there is something to take or to wait for."""
        return bool(self._open or self._news)

    def expect(self, request_id: str) -> None:
        """Deltas of this request will come."""
        with self._changed:
            if request_id in self._open:
                raise RequestError(f"request_id={request_id!r} is being answered already.")
            self._open.add(request_id)

    def deliver(self, deltas: Sequence[TokenDelta]) -> None:
        """New deltas; the last one of a request closes it."""
        with self._changed:
            self._open.difference_update(
                delta.request_id for delta in deltas if delta.finish_reason is not None
            )
            self._news.append(deltas)
            self._changed.notify_all()

    def interrupt(self, error: JengineError) -> None:
        """Have the reader meet this error once, after what came before."""
        with self._changed:
            self._news.append(error)
            self._changed.notify_all()

    def fail(self, error: EngineDead) -> None:
        """Nothing comes any more: the reader meets this error after what came before."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def pause(self, paused: bool) -> None:
        """While paused a reader does not wait, as nothing comes."""
        with self._changed:
            self._paused = paused
            self._changed.notify_all()

    def take(self, wait: bool) -> list[TokenDelta]:
        """Everything up to the next error. Waits while there is nothing but something may come."""
        with self._changed:
            self._changed.wait_for(lambda: not wait or self._is_due)
            if not self._news and self._failure is not None:
                self._open.clear()  # it is said once; later requests are refused
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
