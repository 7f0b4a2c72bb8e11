"""The bell that ends a rest between two steps, while every request waits for some event."""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, SimpleQueue


class Bell:
    """`ring` may interrupt anything, the other methods included, as finalizers do: only this kind
    of queue allows that. One thread waits."""

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        """End the rest, or keep the next one from beginning."""
        self._rings.put(None)

    def hush(self) -> None:
        """Forget that it rang: what it told of is looked at from now on."""
        with suppress(Empty):
            while True:
                self._rings.get_nowait()

    def wait(self, seconds: float) -> None:
        """Return when it has rung since `hush`, or after so many seconds."""
        with suppress(Empty):
            self._rings.get(timeout=seconds)
