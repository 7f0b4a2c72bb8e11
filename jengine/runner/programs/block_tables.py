"""Writes a plan's new blocks into the block tables on the device.

The step writes those that fit its packed input. The rest, such as those of a long prefix hit, are
written by a small program that is queued before the step.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import numpy as np
from jax import Array

from jengine.plan import NewBlocks
from jengine.runner.programs.compiler import StepCompiler
from jengine.runner.programs.state_writer import StateWriter
from jengine.runner.step.batch import with_new_blocks

# Blocks per run of that program.
WRITTEN_AT_ONCE = 2048


def block_entries(new_blocks: Iterable[NewBlocks]) -> np.ndarray:
    """i32[N, 4]: (group, row, index, block) per new block."""
    found = list(new_blocks)
    if not found:
        return np.zeros((0, 4), np.int32)
    heads = np.array([(one.group, one.row, one.first) for one in found], np.int32)
    counts = np.array([len(one.blocks) for one in found], np.int32)
    entries = np.empty((int(counts.sum()), 4), np.int32)
    entries[:, :3] = np.repeat(heads, counts, axis=0)
    begins = np.cumsum(counts) - counts
    entries[:, 2] += np.arange(len(entries), dtype=np.int32) - np.repeat(begins, counts)
    entries[:, 3] = np.fromiter(chain.from_iterable(one.blocks for one in found), np.int32)
    return entries


class BlockWriter:
    """A small program that writes block table entries, compiled on first use."""

    def __init__(self, compiler: StepCompiler) -> None:
        self._run = StateWriter(compiler, with_new_blocks, compiler.state.tables)

    def write(self, tables: Array, entries: np.ndarray) -> Array:
        """Return the tables with any number of new blocks. Donates the given tables."""
        for begin in range(0, len(entries), WRITTEN_AT_ONCE):
            part = entries[begin : begin + WRITTEN_AT_ONCE]
            padded = np.full((WRITTEN_AT_ONCE, 4), np.iinfo(np.int32).max, np.int32)
            padded[: len(part)] = part
            tables = self._run(tables, padded)
        return tables

    def warm_up(self, tables: Array) -> Array:
        """Compile the program and run it once, on padding."""
        return self._run(tables, np.full((WRITTEN_AT_ONCE, 4), np.iinfo(np.int32).max, np.int32))
