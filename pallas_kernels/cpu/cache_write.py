"""Empty caches, and in-place cache writes with or without norm and rotation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from pallas_kernels.cache_write.xla import NORM_SCOPES, norm_scope
from pallas_kernels.cpu.library import ffi_call
from pallas_kernels.cpu.matmul import floats
from pallas_kernels.shapes import as_scalar


def empty_cache_cpu(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """See `empty_cache`. Allocated in huge pages: a sequence's blocks are scattered, which costs
    TLB misses."""
    return ffi_call("empty_cache", jax.ShapeDtypeStruct(shape, dtype))()


def write_cache_cpu(cache: Array, layer: int | Array, k: Array, v: Array, slots: Array) -> Array:
    """See `write_cache`."""
    call = ffi_call(
        "write_cache",
        jax.ShapeDtypeStruct(cache.shape, cache.dtype),
        input_output_aliases={0: 0},
    )
    k, v = k.astype(jnp.float32), v.astype(jnp.float32)
    return call(cache, as_scalar(layer), k, v, slots, dim=np.int64(k.shape[-1]))


def rotate_and_write_cpu(
    cache: Array,
    layer: int | Array,
    qkv: Array,
    slots: Array,
    rotation: tuple[Array, Array] | None,
    norms: tuple[Array, Array] | None,
    eps: float,
    weight_offset: float,
) -> tuple[Array, Array]:
    """See `rotate_and_write`."""
    tokens, kv_heads, members, dim = qkv.shape
    results = (
        jax.ShapeDtypeStruct(cache.shape, cache.dtype),
        jax.ShapeDtypeStruct((tokens, kv_heads * (members - 2), dim), jnp.float32),
    )
    cos, sin = (None, None) if rotation is None else rotation
    q_norm, k_norm = (None, None) if norms is None else norms
    call = ffi_call("rotate_and_write", results, input_output_aliases={0: 0})
    cache, q = call(
        cache, as_scalar(layer), qkv, slots, floats(cos), floats(sin), floats(q_norm),
        floats(k_norm), norm=np.int32(NORM_SCOPES.index(norm_scope(norms))),
        eps=np.float32(eps), offset=np.float32(weight_offset),
    )  # fmt: skip
    return q, cache
