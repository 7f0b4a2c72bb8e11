"""Writes keys and values of new tokens into the paged cache."""

from __future__ import annotations

from functools import partial

import jax
from jax import Array

from pallas_kernels.choice import choose
from pallas_kernels.layout import write_slots


@partial(jax.jit, static_argnames="implementation")
def write_cache(
    cache: Array,
    layer: int | Array,
    k: Array,
    v: Array,
    slots: Array,
    implementation: str | None = None,
) -> Array:
    """Store k and v [T, kv_heads, dim] at token slots [T]; a slot outside the cache is skipped.

    Slots that are inside are unique, so the order of writes does not matter.
    """
    table = {"xla": _write_xla, "triton": "pallas_kernels.cache_write.triton:write_cache_triton"}
    return choose("write_cache", implementation, table)(cache, layer, k, v, slots)


def _write_xla(cache: Array, layer: int | Array, k: Array, v: Array, slots: Array) -> Array:
    tokens = slots.shape[0]
    return write_slots(cache, layer, k.reshape(tokens, -1), v.reshape(tokens, -1), slots)
