"""The result of a call that may be awaited, but need not be."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any


class Done(Coroutine[None, None, None]):
    """A finished coroutine: it can be awaited, made a task or dropped without a warning."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield

    def send(self, _value: None) -> None:
        """End at once."""
        raise StopIteration

    def throw(self, typ: Any, val: Any = None, tb: Any = None) -> None:
        """Raise the exception thrown in."""
        raise typ if val is None else val

    def close(self) -> None:
        """Nothing is left to close."""
