"""StepState: everything the device keeps between steps, donated to each step and handed on."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jengine.config import CacheConfig, CacheGroup
from jengine.sampling import RowState, empty_row_state
from pallas_kernels.layout import cache_shape
from sharding.placement import Placement

# Logical axes of a cache array: its vectors hold the kv heads one after the other.
CACHE_AXES = (None, None, None, None, "kv_heads")


class StepState(NamedTuple):
    """One cache array a group, the last sampled token of each row, and the sampler's row state."""

    caches: tuple[Array, ...]
    last_token: Array  # i32[rows]
    rows: RowState


def group_shape(group: CacheGroup, num_blocks: int, block_size: int) -> tuple[int, ...]:
    """Shape of a group's cache array."""
    spec = group.spec
    return cache_shape(len(group.layers), num_blocks, block_size, spec.kv_heads, spec.head_dim)


def block_bytes(group: CacheGroup, block_size: int, dtype: Any) -> int:
    """Bytes that one block of a group takes over all its layers."""
    return math.prod(group_shape(group, 1, block_size)) * np.dtype(jnp.dtype(dtype)).itemsize


def empty_state(
    cache: CacheConfig, cache_dtype: Any, max_rows: int, vocab_size: int, max_model_len: int
) -> StepState:
    """A state with nothing in it. `jax.eval_shape` of this very function sizes the engine."""
    return StepState(
        caches=tuple(
            jnp.zeros(group_shape(group, blocks, cache.block_size), cache_dtype)
            for group, blocks in zip(cache.groups, cache.num_blocks, strict=True)
        ),
        last_token=jnp.zeros(max_rows, jnp.int32),
        rows=empty_row_state(max_rows, vocab_size, max_model_len),
    )


def placed_state(state: StepState, placement: Placement) -> StepState:
    """The shapes of a state, each with where it lies: caches by kv head, row state by token id."""

    def placed(x: Any, axes: tuple[str | None, ...]) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placement.sharding(axes, x.shape))

    whole = jax.tree.map(lambda x: placed(x, (None,) * x.ndim), state)
    by_token = {
        name: placed(getattr(state.rows, name), (None, "vocab")) for name in ("marks", "bias")
    }
    return whole._replace(
        caches=tuple(placed(cache, CACHE_AXES) for cache in state.caches),
        rows=whole.rows._replace(**by_token),
    )


def state_bytes(state: Any) -> int:
    """Bytes that a placed state takes on each device."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        for x in jax.tree.leaves(state)
    )
