"""Pending questions to a core in another process.

In: a question, later its answer or error by number. Out: the answer, to the asking thread. Must not
know sockets.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar, cast

import msgspec

from jengine.engine.process.to_core import Ask
from jengine.engine.questions import AnyQuestion, CoreQuestion
from jengine.errors import EngineDead, JengineError

A = TypeVar("A")


class Asking:
    def __init__(self, send: Callable[[Ask], None]) -> None:
        self._send = send
        self._numbers = itertools.count()
        self._lock = threading.Lock()  # around the next two
        self._waiting: dict[int, tuple[CoreQuestion[Any], Future[Any]]] = {}
        self._failure: EngineDead | None = None

    def ask(self, question: CoreQuestion[A]) -> A:
        """Send a question and wait. Raises the core's error, or EngineDead."""
        number, arrived = next(self._numbers), Future[Any]()
        with self._lock:
            if self._failure is not None:
                raise EngineDead(str(self._failure))
            self._waiting[number] = question, arrived
        self._send(Ask(number, cast(AnyQuestion, question)))
        return arrived.result()

    def resolve(self, number: int, value: bytes | JengineError) -> None:
        """Deliver an answer; ignored if no one waits for it."""
        with self._lock:
            question, arrived = self._waiting.pop(number, (None, None))
        if question is None or arrived is None:
            return
        if isinstance(value, JengineError):
            arrived.set_exception(value)
            return
        try:
            arrived.set_result(question.read_answer(value))
        except msgspec.DecodeError as error:
            arrived.set_exception(EngineDead(f"an answer of the core cannot be read: {error}"))

    def fail(self, error: EngineDead) -> None:
        """Fail all pending and future questions."""
        with self._lock:
            self._failure = error
            waiting, self._waiting = list(self._waiting.values()), {}
        for _, arrived in waiting:
            arrived.set_exception(EngineDead(str(error)))
