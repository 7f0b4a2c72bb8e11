"""Taps of a step: which values a request captures, and which functions change values.

A plan names sets of taps by number; the functions themselves never leave the process. While a step
is traced, its taps are called at the model's tap points and touch the tokens of their rows only.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array

# fn(values) or fn(values, positions): f32 [tokens, width] and i32 [tokens] -> [tokens, width]
Intervention = Callable[..., Array]
# Sets whose programs stay compiled after the last request that used them.
SETS_KEPT = 8


@dataclass(frozen=True)
class TapSet:
    """What the requests of one call capture and change."""

    number: int
    capture: tuple[str, ...]
    intervene: tuple[tuple[str, Intervention], ...]

    def __str__(self) -> str:
        return f"taps={self.number}"


class TapSets:
    """The sets in use, and a few that may be used again without compiling."""

    def __init__(self, forget: Callable[[TapSet], None]) -> None:
        self._forget = forget  # told when a set will never be used again
        self._sets: dict[int, TapSet] = {}  # the one opened last is last
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


class StepTaps:
    """The tap of one step while it is traced. `captured` holds what passed the points asked for."""

    def __init__(self, sets: tuple[TapSet, ...], owners: Array, positions: Array) -> None:
        self.sets = sets
        self.owners = owners  # i32 [tokens]: the set of each token's row
        self.positions = positions
        self.captured: dict[str, Array] = {}

    def __call__(self, name: str, value: Array) -> Array:
        """Change the value for the rows that asked for it, then keep it for those that did."""
        for taps in self.sets:
            for point, function in taps.intervene:
                if point == name:
                    changed = call_intervention(function, value, self.positions)
                    value = jnp.where((self.owners == taps.number)[:, None], changed, value)
        if any(name in taps.capture for taps in self.sets):
            self.captured[name] = value.astype(jnp.float32)
        return value


def call_intervention(function: Intervention, value: Array, positions: Array) -> Array:
    """The function's result in the dtype of what it replaces."""
    arguments = (value.astype(jnp.float32), positions)
    return jnp.asarray(function(*arguments[: takes(function)])).astype(value.dtype)


def takes(function: Intervention) -> int:
    """How many of (values, positions) a function takes: those that it must be given."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # functions written in C have no signature; such take values
        return 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [
        one
        for one in parameters
        if one.kind in positional and one.default is inspect.Parameter.empty
    ]
    return min(max(len(required), 1), 2)
