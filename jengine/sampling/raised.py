"""Errors raised by users' callbacks while a step ran. No jax."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Raised:
    """Error count of one set of taps or logits processors. XLA's threads write it; the thread that
    reads steps compares it with the count when the step was queued."""

    count: int = 0
    last: str = ""

    def note(self, error: BaseException) -> None:
        """Record an exception of a callback."""
        self.last = f"{type(error).__name__}: {error}"
        self.count += 1
