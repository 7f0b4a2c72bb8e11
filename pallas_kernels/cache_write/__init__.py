"""Writes keys and values of new tokens into the paged cache."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from pallas_kernels.choice import choose
from pallas_kernels.layout import KEYS, VALUES


def write_cache(
    cache: Array, layer: int, k: Array, v: Array, slots: Array, implementation: str | None = None
) -> Array:
    """Store k and v [T, kv_heads, dim] at token slots [T]; a slot outside the cache is skipped.

    Slots that are inside are unique, so the order of writes does not matter.
    """
    return choose("write_cache", implementation, {"xla": _write_xla})(cache, layer, k, v, slots)


def _write_xla(cache: Array, layer: int, k: Array, v: Array, slots: Array) -> Array:
    block_size = cache.shape[3]
    blocks, offsets = slots // block_size, slots % block_size
    both = jnp.stack([k, v]).reshape(2, slots.shape[0], -1).astype(cache.dtype)
    planes = jnp.array([[KEYS], [VALUES]], dtype=slots.dtype)
    index = (layer, planes, blocks[None, :], offsets[None, :])
    return cache.at[index].set(both, mode="drop", unique_indices=True)
