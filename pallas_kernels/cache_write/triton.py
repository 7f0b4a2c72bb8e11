"""Cache writes by Triton kernels, in place."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels.cache_write.kernels import (
    rotate_and_write_heads,
    write_coded_tokens,
    write_tokens,
)
from pallas_kernels.cache_write.xla import norm_scope
from pallas_kernels.launch import Launch, call_kernel
from pallas_kernels.layout import codes_of, has_scales, strides
from pallas_kernels.shapes import as_scalar, next_power_of_two
from pallas_kernels.tuning import tuned


def write_cache_triton(cache: Array, layer: int | Array, k: Array, v: Array, slots: Array) -> Array:
    """See `write_cache`."""
    tokens, kv_heads, head_dim = k.shape
    if has_scales(cache.dtype):
        padded = next_power_of_two(kv_heads), next_power_of_two(head_dim)
        constants = {
            **cache_constants(cache, head_dim),
            "KV_HEADS": kv_heads,
            "PADDED_HEADS": padded[0],
            "PADDED_DIM": padded[1],
            "CODES": codes_of(cache.dtype),
        }
        warps = warps_for(math.prod(padded), "codes")
        (cache,) = call_kernel(
            write_coded_tokens, cache, as_scalar(layer), k, v, slots,
            in_place=(0,),
            launch=Launch((tokens,), constants, warps, num_stages=1),
        )  # fmt: skip
        return cache
    width = math.prod(k.shape[1:])
    padded = next_power_of_two(width)
    constants = {**cache_constants(cache, head_dim), "WIDTH": width, "PADDED_WIDTH": padded}
    warps = warps_for(padded, cache.dtype.name)
    (cache,) = call_kernel(
        write_tokens,
        cache, as_scalar(layer), k.reshape(tokens, width), v.reshape(tokens, width), slots,
        in_place=(0,),
        launch=Launch((tokens,), constants, warps, num_stages=1),
    )  # fmt: skip
    return cache


def rotate_and_write_triton(
    cache: Array,
    layer: int | Array,
    qkv: Array,
    slots: Array,
    rotation: tuple[Array, Array] | None,
    norms: tuple[Array, Array] | None,
    eps: float,
    weight_offset: float,
    *,
    finite: bool = False,
) -> tuple[Array, Array]:
    """See `rotate_and_write`. q is returned in the dtype that attention reads."""
    tokens, kv_heads, members, head_dim = qkv.shape
    group = members - 2
    norm = norm_scope(norms)
    # Unused pointers are not read, but every parameter of the kernel needs an array.
    cos, sin = (qkv, qkv) if rotation is None else rotation
    q_weight, k_weight = (qkv, qkv) if norms is None else norms
    inverse = inverse_rms(qkv, eps) if norm == "whole" else qkv
    padded = next_power_of_two(members), next_power_of_two(head_dim)
    constants = {
        **cache_constants(cache, head_dim),
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "PADDED_MEMBERS": padded[0],
        "PADDED_DIM": padded[1],
        "PAIRS": 0 if rotation is None else cos.shape[-1],
        "NORM": norm,
        "EPS": eps,
        "WEIGHT_OFFSET": weight_offset,
        "CODES": codes_of(cache.dtype),
        "FINITE": finite,
    }
    kind = jnp.bfloat16 if has_scales(cache.dtype) else cache.dtype
    warps = warps_for(math.prod(padded), cache.dtype.name)
    q, cache = call_kernel(
        rotate_and_write_heads,
        cache, as_scalar(layer), qkv, slots, cos, sin, q_weight, k_weight, inverse,
        out=[jax.ShapeDtypeStruct((tokens, kv_heads * group, head_dim), kind)],
        in_place=(0,),
        launch=Launch((tokens * kv_heads,), constants, warps, num_stages=1),
    )  # fmt: skip
    return q, cache


def warps_for(lanes: int, dtype: str) -> int:
    """Tuned number of warps for a program that writes `lanes` lanes of a token."""
    return tuned("cache_write", lanes=lanes, dtype=dtype)["warps"]


def cache_constants(cache: Array, head_dim: int) -> dict[str, Any]:
    """Compile-time constants with which a kernel computes a slot's address."""
    return {
        **strides(cache, head_dim).constants(),
        "BLOCKS": cache.shape[2],
        "BLOCK_SIZE": cache.shape[3],
        "HEAD_DIM": head_dim,
    }


def inverse_rms(qkv: Array, eps: float) -> Array:
    """1 / rms of each token over all query heads and over all key heads, [T, 2]."""
    squares = jnp.mean(jnp.square(qkv.astype(jnp.float32)), axis=-1)  # [T, KV, members]
    means = [jnp.mean(squares[:, :, part], axis=(1, 2)) for part in (slice(-2), slice(-2, -1))]
    return lax.rsqrt(jnp.stack(means, axis=-1) + eps)
