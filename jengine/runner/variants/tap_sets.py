"""Tap sets: which values requests capture, and which functions change values. No jax.

A plan names tap sets by number; the functions never leave the process. `step/taps.py` applies them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jengine.sampling.raised import Raised

# fn(values) or fn(values, positions): f32 [tokens, width] and i32 [tokens] -> [tokens, width]
Intervention = Callable[..., Any]
# Sets that are kept, with their programs, after the last request that used them.
SETS_KEPT = 8


@dataclass(frozen=True)
class TapSet:
    """What the requests of one call capture, and the functions that change values."""

    number: int
    capture: tuple[str, ...]
    intervene: tuple[tuple[str, Intervention], ...]
    raised: Raised = field(default_factory=Raised, compare=False)

    def __str__(self) -> str:
        return f"taps={self.number}"


class TapSets:
    """The sets in use, and a few that could be used again without compiling."""

    def __init__(self, forget: Callable[[TapSet], None]) -> None:
        self._forget = forget  # called with a set that will not be used again
        self._sets: dict[int, TapSet] = {}  # least recently opened first
        self._users: Counter[int] = Counter()
        self._made = 0

    @contextmanager
    def opened(
        self, capture: Sequence[str], intervene: Mapping[str, Intervention]
    ) -> Iterator[int]:
        """The number by which plans name this set; 0 if there is nothing in it."""
        if not capture and not intervene:
            yield 0
            return
        number = self._number(tuple(capture), tuple(intervene.items()))
        self._users[number] += 1
        try:
            yield number
        finally:
            self._users[number] -= 1
            self._drop_unused()

    def of(self, numbers: np.ndarray) -> tuple[TapSet, ...]:
        """The sets that these rows use, each once."""
        if not numbers.any():
            return ()
        return tuple(self._sets[number] for number in np.unique(numbers).tolist() if number)

    def raised_by(self, number: int) -> Raised | None:
        """The errors of the functions of a set that is in use."""
        return self._sets[number].raised if number else None

    def _number(
        self, capture: tuple[str, ...], intervene: tuple[tuple[str, Intervention], ...]
    ) -> int:
        for number, known in self._sets.items():
            if (known.capture, known.intervene) == (capture, intervene):
                self._sets[number] = self._sets.pop(number)
                return number
        self._made += 1
        self._sets[self._made] = TapSet(self._made, capture, intervene)
        return self._made

    def _drop_unused(self) -> None:
        idle = [number for number in self._sets if not self._users[number]]
        for number in idle[: max(len(self._sets) - SETS_KEPT, 0)]:
            del self._users[number]
            self._forget(self._sets.pop(number))
