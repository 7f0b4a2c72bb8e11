"""The one place that knows how keys and values lie in the paged cache.

A cache group is one array [layers, 2, blocks, block_size, kv_heads * head_dim]; keys are plane 0,
values plane 1. A token's vector of all its kv heads is one contiguous run.
"""

from __future__ import annotations

from jax import Array

KEYS, VALUES = 0, 1


def cache_shape(
    layers: int, blocks: int, block_size: int, kv_heads: int, head_dim: int
) -> tuple[int, ...]:
    """Shape of a cache group's array."""
    return (layers, 2, blocks, block_size, kv_heads * head_dim)


def read_blocks(cache: Array, layer: int, plane: int, blocks: Array) -> Array:
    """Gather whole blocks, [..., n] -> [..., n * block_size, kv_heads * head_dim]."""
    gathered = cache.at[layer, plane, blocks].get(mode="promise_in_bounds")
    return gathered.reshape(*blocks.shape[:-1], -1, cache.shape[-1])
