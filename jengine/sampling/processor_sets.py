"""Registry of custom logits processors, the users' functions that run inside the step. No jax.

A plan names sets of functions by number; functions never leave the process. `processors.py` applies
them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jengine.errors import RequestError
from jengine.sampling.raised import Raised

# f(logits) or f(ids, logits): f32[vocab] and i32[length] of one row -> f32[vocab]
Processor = Callable[..., Any]
# Each set compiles its own programs, which are never dropped.
MOST_SETS = 32


@dataclass(frozen=True)
class ProcessorSet:
    """An ordered set of processors used by some requests."""

    number: int
    functions: tuple[Processor, ...]
    raised: Raised = field(default_factory=Raised, compare=False)

    def __str__(self) -> str:
        return f"logits_processors={self.number}"


class ProcessorSets:
    """All processor sets that requests have used. Thread-safe. `check` raises RequestError for a
    function that cannot run in a step."""

    def __init__(self, check: Callable[[Processor], None]) -> None:
        self._check = check
        self._sets: list[ProcessorSet] = []
        self._lock = threading.Lock()

    def number_of(self, functions: Sequence[Processor]) -> int:
        """Register processors and return their set's number in plans; 0 for none. Raises
        RequestError if there are too many sets."""
        wanted = tuple(functions)
        if not wanted:
            return 0
        with self._lock:
            for known in self._sets:
                if known.functions == wanted:
                    return known.number
            if len(self._sets) == MOST_SETS:
                raise RequestError(
                    f"logits_processors: this engine has compiled {MOST_SETS} sets of functions, "
                    "the most that it keeps. Make the functions once, and give the same objects to "
                    "all requests."
                )
            for function in wanted:
                self._check(function)
            self._sets.append(ProcessorSet(len(self._sets) + 1, wanted))
            return len(self._sets)

    def raised_by(self, number: int) -> Raised | None:
        """Errors raised by a set's callbacks."""
        return self._sets[number - 1].raised if number else None

    def of(self, numbers: np.ndarray) -> tuple[ProcessorSet, ...]:
        """The distinct sets used by these rows."""
        if not numbers.any():
            return ()
        return tuple(self._sets[number - 1] for number in np.unique(numbers).tolist() if number)
