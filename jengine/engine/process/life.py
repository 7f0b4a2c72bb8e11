"""Whether a core in another process lives, and who is told when it has died.

In: the first reason why it is gone. Out: errors for everything that needs it. Any thread may call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from jengine.errors import EngineDead

WhenDead = Callable[[EngineDead], None]


class Life:
    """One core's life, as far as known."""

    def __init__(self, told: Iterable[WhenDead]) -> None:
        self.changed = threading.Condition()  # notified at the end, and by others who share it
        self.failure: EngineDead | None = None
        self._told = list(told)

    def check(self) -> None:
        """Raise EngineDead if the core has died."""
        if self.failure is not None:
            raise EngineDead(str(self.failure)) from self.failure

    def when_dead(self, tell: WhenDead) -> None:
        """Have a function called when the core has died; at once if it has."""
        with self.changed:
            self._told.append(tell)
            failure = self.failure
        if failure is not None:
            tell(failure)

    def end(self, reason: EngineDead) -> None:
        """The core is gone: tell everybody. The first reason counts."""
        with self.changed:
            if self.failure is not None:
                return
            self.failure = reason
            told = list(self._told)
            self.changed.notify_all()
        for tell in told:
            tell(reason)
