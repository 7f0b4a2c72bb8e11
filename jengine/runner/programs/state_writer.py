"""Small programs that write host arrays into a part of the step state, queued before a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jengine.runner.programs.compiler import Compiled, StepCompiler
from sharding.shared import shared


class StateWriter:
    """Runs `write(kept, *given)`, which returns `kept` (a part of the state, donated) with the
    given arrays written. One program per shape of the first given array, compiled on first use."""

    def __init__(self, compiler: StepCompiler, write: Callable[..., Any], kept: Any) -> None:
        self._placement = compiler.placement
        self._write = write
        self._kept = kept  # abstract, with shardings
        self._programs: dict[tuple[int, ...], Compiled] = {}

    def __call__(self, kept: Any, *given: Any) -> Any:
        size = np.shape(given[0])
        if size not in self._programs:
            self._programs[size] = self._compiled(given)
        return self._programs[size](kept, *given)

    def _compiled(self, given: tuple[Any, ...]) -> Compiled:
        # Compiled ahead of time: jit would compile again for a step's output, whose shardings are
        # equivalent but not equal to those of the first state.
        everywhere = self._placement.everywhere
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere), given
        )
        shardings = jax.tree.map(lambda x: x.sharding, self._kept)
        jitted = jax.jit(self._write, donate_argnums=0, out_shardings=shardings)
        key = (self._write, self._kept, shapes) if self._placement.is_cpu else None
        return shared(key, lambda: jitted.lower(self._kept, *shapes).compile())
