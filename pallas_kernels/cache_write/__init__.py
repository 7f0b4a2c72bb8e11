"""Writes keys and values of new tokens into the paged cache."""

from __future__ import annotations

from functools import partial

import jax
from jax import Array

from pallas_kernels.cache_write.xla import rotate_and_write_xla, write_cache_xla
from pallas_kernels.choice import choose

WRITE = {
    "xla": write_cache_xla,
    "triton": "pallas_kernels.cache_write.triton:write_cache_triton",
}
ROTATE_AND_WRITE = {
    "xla": rotate_and_write_xla,
    "triton": "pallas_kernels.cache_write.triton:rotate_and_write_triton",
}


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
    return choose("write_cache", implementation, WRITE)(cache, layer, k, v, slots)


@partial(jax.jit, static_argnames=("eps", "weight_offset", "implementation"))
def rotate_and_write(
    cache: Array,
    layer: int | Array,
    qkv: Array,
    slots: Array,
    *,
    rotation: tuple[Array, Array] | None = None,
    norms: tuple[Array, Array] | None = None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    implementation: str | None = None,
) -> tuple[Array, Array]:
    """Normalise and rotate queries and keys, store keys and values: float32 q, and the cache.

    qkv is the float32 product [T, kv_heads, group + 2, dim]: the queries of a kv head, its key, its
    value. norms are the weights of the queries' and the keys' RMS norm, to which weight_offset is
    added: [dim] for each head by itself, or [kv_heads, group, dim] and [kv_heads, dim] for all
    heads of a token as one vector. rotation is cos and sin, [T, pairs] each, for the first
    2 * pairs lanes of every head. q comes back as [T, kv_heads * group, dim]; slots are as in
    `write_cache`.
    """
    run = choose("rotate_and_write", implementation, ROTATE_AND_WRITE)
    return run(cache, layer, qkv, slots, rotation, norms, eps, weight_offset)
