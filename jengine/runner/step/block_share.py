"""Decode context parallelism: each device holds a contiguous part of every KV block.

In: a step's view of a cache group. Out: slots, counts and the view for this device's kernels. Must
not know how outputs are merged.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from jengine.runner.step.group_arrays import Axes
from jengine.runner.step.views import GroupView
from jengine.runner.variants.buckets import StepShapes
from sharding.context import own_count, own_slots
from sharding.placement import Placement


class BlockShare(NamedTuple):
    """How many devices divide a block, and into how many tokens."""

    own: int  # tokens of a block per device
    ways: int  # devices that divide a block; 1: each holds whole blocks

    @classmethod
    def of(cls, axes: Axes, shapes: StepShapes, placement: Placement) -> BlockShare:
        """The share of a cache array with these logical axes."""
        ways = 1
        if "block_tokens" in axes:
            ways = placement.ways_of("block_tokens", shapes.block_size)
        return cls(shapes.block_size // ways, ways)

    @property
    def is_whole(self) -> bool:
        """Whether each device holds all tokens."""
        return self.ways == 1

    def slots(self, slots: Array) -> Array:
        """Cache slots of tokens on this device; out of range for tokens held by others."""
        return slots if self.is_whole else own_slots(slots, self.own, self.ways)

    def counts(self, tokens: Array) -> Array:
        """How many of a sequence's first `tokens` tokens this device holds."""
        return own_count(tokens, self.own, self.ways)

    def view(self, view: GroupView) -> tuple[GroupView, Array]:
        """The view of this device's tokens as a shorter sequence, and which queries see any.

        Kernels require that every query sees a key, so one without any reads the first slot, and
        its output must be ignored.
        """
        count = self.counts(view.positions + 1)
        positions = jnp.where(view.positions < 0, -1, jnp.maximum(count - 1, 0))
        return view._replace(positions=positions), count > 0


def scattered_dimension(
    shape: tuple[int, ...], axes: Axes, read_axes: Axes, placement: Placement
) -> int | None:
    """Dimension of outputs that is sharded further than that of queries, or None.

    A device attends for the queries of all devices that share a block, so queries come sharded by
    `read_axes` and outputs leave sharded by `axes`.
    """
    for dimension, (size, axis, read) in enumerate(zip(shape, axes, read_axes, strict=True)):
        if placement.ways_of(axis, size) > placement.ways_of(read, size):
            return dimension
    return None
