"""Liveness of a core in another process, and callbacks for its death. Thread-safe.

In: the first reason for its death. Out: errors for everything that depends on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from jengine.errors import EngineDead

WhenDead = Callable[[EngineDead], None]


class Liveness:
    def __init__(self, told: Iterable[WhenDead]) -> None:
        self.changed = threading.Condition()  # notified at death, and by `Startup`
        self.failure: EngineDead | None = None
        self._told = list(told)

    def check(self) -> None:
        if self.failure is not None:
            raise EngineDead(str(self.failure)) from self.failure

    def when_dead(self, tell: WhenDead) -> None:
        """Register a callback for the core's death; called at once if it is dead."""
        with self.changed:
            self._told.append(tell)
            failure = self.failure
        if failure is not None:
            tell(failure)

    def end(self, reason: EngineDead) -> None:
        """Mark the core dead and call the callbacks; the first reason counts."""
        with self.changed:
            if self.failure is not None:
                return
            self.failure = reason
            told = list(self._told)
            self.changed.notify_all()
        for tell in told:
            tell(reason)
