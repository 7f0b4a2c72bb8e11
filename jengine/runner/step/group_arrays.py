"""The arrays of a cache group: shapes, logical axes and sizes.

A group of attention layers has one array, layers first. A group of recurrent layers has a float32
array per part of the state, divided into units that hold one state each.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jengine.config import CacheGroup, CacheSpec
from pallas_kernels.cache_write import empty_cache
from pallas_kernels.layout import cache_shape, entries_shape
from sharding.placement import Placement

STATE_AXES = ("stage", None)  # of recurrent groups' arrays (layers, units), before a state's axes

Axes = tuple[str | None, ...]


def group_shape(
    group: CacheGroup, num_blocks: int, block_size: int, dtype: Any, stages: int = 1
) -> tuple[int, ...]:
    """Shape of the array of an attention group; its layers are those of one pipeline stage."""
    spec, layers = group.spec, stages * len(group.layers)
    if spec.shares_heads:
        return entries_shape(layers, num_blocks, block_size, spec.head_dim)
    return cache_shape(layers, num_blocks, block_size, spec.kv_heads, spec.head_dim, dtype)


def state_shapes(group: CacheGroup, units: int, stages: int = 1) -> tuple[tuple[int, ...], ...]:
    """Shapes of the arrays of a group of recurrent layers."""
    layers = stages * len(group.layers)
    return tuple((layers, units, *state.shape) for state in group.spec.states)


def empty_group(
    group: CacheGroup, units: int, block_size: int, dtype: Any, stages: int, kernels: str | None
) -> Any:
    """A group's zeroed array; for a recurrent group a tuple of arrays."""
    if group.spec.in_parts:
        return tuple(jnp.zeros(shape, jnp.float32) for shape in state_shapes(group, units, stages))
    return empty_cache(group_shape(group, units, block_size, dtype, stages), dtype, kernels)


def group_axes(group: CacheGroup) -> Any:
    """Logical axes of a group's array, or a tuple of those of its arrays."""
    if group.spec.in_parts:
        return tuple((*STATE_AXES, *state.axes) for state in group.spec.states)
    return attention_axes(group.spec)


def attention_axes(spec: CacheSpec) -> Axes:
    """Logical axes of an attention cache array. KV heads are contiguous in the last dimension;
    windowed caches are small and not divided by token."""
    tokens = "block_tokens" if spec.keeps_all else None
    if spec.shares_heads:  # latent entries, shared by all heads
        return ("stage", None, tokens, None)
    return ("stage", None, None, tokens, "kv_heads")


def block_bytes(group: CacheGroup, block_size: int, dtype: Any) -> int:
    """Bytes of one block (or state unit) over a group's layers of one stage."""
    if group.spec.in_parts:
        return sum(map(math.prod, state_shapes(group, 1))) * np.dtype(np.float32).itemsize
    return math.prod(group_shape(group, 1, block_size, dtype)) * np.dtype(jnp.dtype(dtype)).itemsize


def block_bytes_on_each(
    group: CacheGroup, block_size: int, dtype: Any, placement: Placement
) -> int:
    """`block_bytes` per device."""
    if not group.spec.in_parts:
        ways = placement.ways("kv_heads")
        if group.spec.keeps_all:
            ways *= placement.ways("block_tokens")
        return block_bytes(group, block_size, dtype) // ways
    own = placement.in_stage()  # the layers are those of one stage
    found = sum(
        math.prod(shape) // math.prod(map(own.ways_of, axes, shape))
        for shape, axes in zip(state_shapes(group, 1), group_axes(group), strict=True)
    )
    return found * np.dtype(np.float32).itemsize


def each_array(cache: Any) -> tuple[Array, ...]:
    """The arrays of a group."""
    return cache if isinstance(cache, tuple) else (cache,)
