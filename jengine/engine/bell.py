"""Interruptible wait between steps, used while every request waits for some event."""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, SimpleQueue


class Bell:
    """A one-waiter event. `ring` is reentrant: a finalizer may call it inside any other method,
    which only SimpleQueue allows."""

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        """Wake the waiter, or prevent the next wait."""
        self._rings.put(None)

    def hush(self) -> None:
        """Clear earlier rings; their causes are handled from here on."""
        with suppress(Empty):
            while True:
                self._rings.get_nowait()

    def wait(self, seconds: float) -> None:
        """Return when rung since `hush`, or after `seconds`."""
        with suppress(Empty):
            self._rings.get(timeout=seconds)
