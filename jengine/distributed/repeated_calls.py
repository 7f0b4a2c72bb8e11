"""The calls that a new or restarted core must be sent to catch up: loaded adapters. No jax."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from jengine.engine.questions import CallWorkers, CoreQuestion
from jengine.errors import RequestError
from jengine.executor.calls import DropAdapter, decoded_answers


class RepeatedCalls:
    """Remembers adapters that were added and not dropped since."""

    def __init__(self) -> None:
        self._added: list[tuple[str, bytes]] = []  # digests, and the arguments of the calls
        self._lock = threading.Lock()

    def note(self, question: CoreQuestion[Any], answers: Any) -> None:
        if not isinstance(question, CallWorkers):
            return
        method, arguments = question.method, question.arguments
        if method == "add_adapter" and answers:
            with suppress(RequestError), self._lock:  # whoever made the call is told
                (report, *_) = decoded_answers(method, answers)
                self._added.append((report.digest, arguments))
        elif method == "drop_adapter":
            dropped = msgspec.msgpack.decode(arguments, type=DropAdapter).digest
            with self._lock:
                last = next((one for one in self._added if one[0] == dropped), None)
                if last is not None:
                    self._added.remove(last)

    def repeat(self, ask: Callable[[CallWorkers], object]) -> None:
        """Replay the remembered calls to a new core."""
        with self._lock:
            added = list(self._added)
        for _, arguments in added:
            ask(CallWorkers("add_adapter", arguments))
