"""What functions of requests have raised while a step ran them. No jax."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Raised:
    """The errors of one set of functions. XLA's threads note them, the thread that reads steps asks
    whether there are more than when a step was queued."""

    count: int = 0
    last: str = ""

    def note(self, error: BaseException) -> None:
        """A callback of one of the functions has raised this."""
        self.last = f"{type(error).__name__}: {error}"
        self.count += 1
