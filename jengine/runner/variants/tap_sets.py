"""Tap sets: activations that requests capture, and callbacks that change them. No jax.

A plan names tap sets by number; the functions never leave the process. `step/step_taps.py` applies
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from jengine.sampling.raised import Raised

# fn(values) or fn(values, positions): f32 [tokens, width] and i32 [tokens] -> [tokens, width]. With
# arrays, a pytree, these come last.
Intervention = Callable[..., Any]
# While there are more sets, unused ones are dropped with their programs.
SETS_KEPT = 8


class Change(NamedTuple):
    """An intervention at a tap point, and the arrays that it takes."""

    point: str
    function: Intervention
    tree: Any = None  # pytree structure of its arrays; None: it takes none
    places: tuple[int, ...] = ()  # indices of their leaves among the set's arrays


class Changes(NamedTuple):
    """All callbacks of one call, and their arrays, which are operands of the programs.

    With `variants`, the call's requests take one number each, in order, which indexes the first
    axis of every array.
    """

    each: tuple[Change, ...] = ()
    arrays: tuple[Any, ...] = ()
    variants: int = 1


NO_CHANGES = Changes()


class Operands:
    """Current arrays of a tap set."""

    def __init__(self) -> None:
        self.given: tuple[Any, ...] = ()
        self._placed: dict[Any, tuple[Any, ...]] = {}

    def give(self, arrays: tuple[Any, ...]) -> None:
        """Use these arrays in later steps."""
        self.given, self._placed = arrays, {}

    def are(self, arrays: tuple[Any, ...]) -> bool:
        """Whether these same array objects are current."""
        return len(arrays) == len(self.given) and all(map(lambda x, y: x is y, arrays, self.given))

    def on(self, where: Any, put: Callable[[Any, Any], tuple[Any, ...]]) -> tuple[Any, ...]:
        """The arrays placed with this sharding; `put` is called once per set of arrays."""
        if where not in self._placed:
            self._placed[where] = put(self.given, where)
        return self._placed[where]


@dataclass(frozen=True)
class TapSet:
    """Activations that one call's requests capture, and the callbacks that change activations."""

    number: int  # the first of `variants` numbers
    capture: tuple[str, ...]
    intervene: tuple[Change, ...]
    shapes: tuple[tuple[tuple[int, ...], str], ...] = ()  # shape and dtype of each array
    variants: int = 1
    operands: Operands = field(default_factory=Operands, compare=False)
    raised: Raised = field(default_factory=Raised, compare=False)

    @property
    def form(self) -> tuple[Any, ...]:
        """Key of its traced programs, apart from its number."""
        return self.capture, self.intervene, self.shapes, self.variants

    @property
    def numbers(self) -> range:
        """Its numbers in plans."""
        return range(self.number, self.number + self.variants)

    def __str__(self) -> str:
        return f"taps={self.number}"


class TapSets:
    """Tap sets in use, and recently used ones that can be reused without compiling."""

    def __init__(self, forget: Callable[[TapSet], None]) -> None:
        self._forget = forget  # called with a set that will not be used again
        self._sets: dict[int, TapSet] = {}  # by first number, least recently opened first
        self._owners: dict[int, TapSet] = {}  # by every number
        self._users: Counter[int] = Counter()
        self._next = 1

    @contextmanager
    def opened(self, capture: Sequence[str], changes: Changes = NO_CHANGES) -> Iterator[int]:
        """Keep this set in use; yields its (first) number in plans, 0 if it is empty."""
        if not capture and not changes.each:
            yield 0
            return
        number = self._number(capture, changes)
        self._users[number] += 1
        try:
            yield number
        finally:
            self._users[number] -= 1
            self._drop_unused()

    def of(self, numbers: np.ndarray) -> tuple[TapSet, ...]:
        """Distinct sets used by these rows."""
        if not numbers.any():
            return ()
        named = (self._owners[number] for number in np.unique(numbers).tolist() if number)
        return tuple({taps.number: taps for taps in named}.values())

    def raised_by(self, number: int) -> Raised | None:
        """Errors raised by the callbacks of a set in use."""
        return self._owners[number].raised if number else None

    def keeps(self, capture: Sequence[str], changes: Changes) -> bool:
        """Whether a traced set of the same form exists, possibly with other arrays."""
        form = self._new(capture, changes).form
        return any(known.form == form for known in self._sets.values())

    def _new(self, capture: Sequence[str], changes: Changes) -> TapSet:
        shapes = tuple((tuple(array.shape), str(array.dtype)) for array in changes.arrays)
        return TapSet(self._next, tuple(capture), changes.each, shapes, changes.variants)

    def _number(self, capture: Sequence[str], changes: Changes) -> int:
        new = self._new(capture, changes)
        for number, known in self._sets.items():
            # A set in use keeps its arrays; a call with other arrays gets a new set.
            free = not self._users[number] or known.operands.are(changes.arrays)
            if free and known.form == new.form:
                self._sets[number] = self._sets.pop(number)
                known.operands.give(changes.arrays)
                return number
        self._next += new.variants
        self._sets[new.number] = new
        self._owners.update(dict.fromkeys(new.numbers, new))
        new.operands.give(changes.arrays)
        return new.number

    def _drop_unused(self) -> None:
        idle = [number for number in self._sets if not self._users[number]]
        for number in idle[: max(len(self._sets) - SETS_KEPT, 0)]:
            del self._users[number]
            dropped = self._sets.pop(number)
            for one in dropped.numbers:
                del self._owners[one]
            self._forget(dropped)
