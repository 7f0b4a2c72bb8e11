"""Writes a plan's token masks into the sampler's state on the device, before its step.

Few rows have a grammar, and only their masks are sent: V / 8 bytes each.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jengine.plan import TokenMasks
from jengine.runner.programs.compiler import Compiled, StepCompiler
from jengine.sampling.masks import with_masks

# Masks that one run of the program writes: as many as a few requests have, or many.
SIZES = (4, 32)


class MaskWriter:
    """The small programs, one per size, compiled when they are first used."""

    def __init__(self, compiler: StepCompiler) -> None:
        self._compiler = compiler
        self._programs: dict[int, Compiled] = {}

    def write(self, kept: Array, masks: TokenMasks) -> Array:
        """The pool's masks with these in them, any number. The given array is donated."""
        rows, words = masks.rows, masks.bits
        begin = 0
        while begin < len(rows):
            size = next((one for one in SIZES if one >= len(rows) - begin), SIZES[-1])
            part = slice(begin, begin + size)
            kept = self._run(kept, *padded(rows[part], words[part], size))
            begin += size
        return kept

    def warm_up(self, kept: Array) -> Array:
        """Compile the programs and run each once, on padding."""
        for size in SIZES:
            nothing = np.zeros((0, kept.shape[1]), np.int32)
            kept = self._run(kept, *padded(np.zeros(0, np.int32), nothing, size))
        return kept

    def _run(self, kept: Array, rows: np.ndarray, words: np.ndarray) -> Array:
        size = len(rows)
        if size not in self._programs:
            where = self._compiler.placement.everywhere
            state = self._compiler.state.rows.mask
            given = [
                jax.ShapeDtypeStruct(one.shape, jnp.int32, sharding=where) for one in (rows, words)
            ]
            jitted = jax.jit(with_masks, donate_argnums=0, out_shardings=state.sharding)
            self._programs[size] = jitted.lower(state, *given).compile()
        return self._programs[size](kept, rows, words)


def padded(rows: np.ndarray, words: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """So many rows and masks; padding has rows out of range."""
    places = np.full(size, np.iinfo(np.int32).max, np.int32)
    masks = np.full((size, words.shape[1]), -1, np.int32)
    places[: len(rows)], masks[: len(rows)] = rows, words
    return places, masks
