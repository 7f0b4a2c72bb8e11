"""Allocates the paged KV cache and writes the keys and values of new tokens into it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from pallas_kernels.cache_write.xla import rotate_and_write_xla, write_cache_xla
from pallas_kernels.cache_write.xla import rotated_heads as rotated_heads
from pallas_kernels.cache_write.xla import with_finite_values as with_finite_values
from pallas_kernels.choice import choose
from pallas_kernels.layout import held_dtype

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Int, Shaped

EMPTY = {
    "xla": jnp.zeros,
    "cpu": "pallas_kernels.cpu.cache_write:empty_cache_cpu",
    "triton": jnp.zeros,
}
WRITE = {
    "xla": write_cache_xla,
    "cpu": "pallas_kernels.cpu.cache_write:write_cache_cpu",
    "triton": "pallas_kernels.cache_write.triton:write_cache_triton",
}
ROTATE_AND_WRITE = {
    "xla": rotate_and_write_xla,
    "cpu": "pallas_kernels.cpu.cache_write:rotate_and_write_cpu",
    "triton": "pallas_kernels.cache_write.triton:rotate_and_write_triton",
}
# Implementations whose kernel handles `finite`.
LOOKING = ("triton",)


def empty_cache(
    shape: tuple[int, ...], dtype: DTypeLike, implementation: str | None = None
) -> Shaped[Array, "layers ... width"]:
    """Allocate a zeroed cache array on one device."""
    return choose("empty_cache", implementation, EMPTY)(shape, dtype)


@partial(jax.jit, static_argnames="implementation")
def write_cache(
    cache: Shaped[Array, "layers 2 blocks block_size width"],
    layer: int | Int[Array, ""],
    k: Float[Array, "tokens kv_heads dim"],
    v: Float[Array, "tokens kv_heads dim"],
    slots: Int[Array, " tokens"],
    implementation: str | None = None,
) -> Shaped[Array, "layers 2 blocks block_size width"]:
    """Write keys and values to their slots, in place; a slot outside the cache is skipped.

    Slots inside the cache must be unique: writes are unordered.
    """
    return choose("write_cache", implementation, WRITE)(cache, layer, k, v, slots)


@partial(jax.jit, static_argnames=("eps", "weight_offset", "finite", "implementation"))
def rotate_and_write(
    cache: Shaped[Array, "layers 2 blocks block_size width"],
    layer: int | Int[Array, ""],
    qkv: Float[Array, "tokens kv_heads members dim"],
    slots: Int[Array, " tokens"],
    *,
    rotation: tuple[Float[Array, "tokens pairs"], Float[Array, "tokens pairs"]] | None = None,
    norms: tuple[Float[Array, "*queries dim"], Float[Array, "*keys dim"]] | None = None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    finite: bool = False,
    implementation: str | None = None,
) -> tuple[Float[Array, "tokens heads dim"], Shaped[Array, "layers 2 blocks block_size width"]]:
    """Apply QK-norm and rotary embedding, and write keys and values to the cache. Returns (q,
    cache).

    `qkv` is the fused projection's output: per KV head its query group, key and value (members =
    group + 2). `norms` are RMS weights of q and k, to which `weight_offset` is added: [dim]
    normalises each head, [kv_heads, group, dim] and [kv_heads, dim] all heads of a token as one
    vector. `rotation` is (cos, sin) for the first 2 * pairs lanes of each head. `slots` are as in
    `write_cache`.

    q is float32, or the cache's dtype where attention would round to it anyway.

    `finite` keeps NaN and infinity out of cached values, for kernels that multiply whole blocks,
    stale slots included, by probabilities of 0. They are written as 0, and their head's key as NaN,
    so queries that attend to the token still get NaN.
    """
    run = choose("rotate_and_write", implementation, ROTATE_AND_WRITE)
    options = {}
    if finite and implementation in LOOKING:
        options = {"finite": True}
    elif finite:
        qkv = with_finite_values(qkv, held_dtype(cache))
    return run(cache, layer, qkv, slots, rotation, norms, eps, weight_offset, **options)
