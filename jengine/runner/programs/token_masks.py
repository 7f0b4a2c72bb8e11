"""Writes a plan's grammar bitmasks into the sampler's state on the device, before its step.

Only rows with a grammar have a mask, of V / 8 bytes.
"""

from __future__ import annotations

import numpy as np
from jax import Array

from jengine.plan import TokenMasks
from jengine.runner.programs.compiler import StepCompiler
from jengine.runner.programs.state_writer import StateWriter
from jengine.sampling.masks import with_masks

# Masks per run of a program: for few requests, or many.
SIZES = (4, 32)


class MaskWriter:
    """Small programs, one per number of masks, compiled on first use."""

    def __init__(self, compiler: StepCompiler) -> None:
        self._run = StateWriter(compiler, with_masks, compiler.state.rows.mask)

    def write(self, kept: Array, masks: TokenMasks) -> Array:
        """Return the mask pool with any number of masks written. Donates the given array."""
        rows, after, words = masks.rows, masks.after, masks.bits
        begin = 0
        while begin < len(rows):
            size = next((one for one in SIZES if one >= len(rows) - begin), SIZES[-1])
            part = slice(begin, begin + size)
            kept = self._run(kept, *padded(rows[part], after[part], words[part], size))
            begin += size
        return kept

    def warm_up(self, kept: Array) -> Array:
        """Compile the programs and run each once, on padding."""
        for size in SIZES:
            none, nothing = np.zeros(0, np.int32), np.zeros((0, kept.shape[2]), np.int32)
            kept = self._run(kept, *padded(none, none, nothing, size))
        return kept


def padded(
    rows: np.ndarray, after: np.ndarray, words: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pad to `size` with out-of-range rows, which are not written."""
    places = np.full((2, size), np.iinfo(np.int32).max, np.int32)
    masks = np.full((size, words.shape[1]), -1, np.int32)
    places[:, : len(rows)], masks[: len(rows)] = (rows, after), words
    return places[0], places[1], masks
