"""Cache writes in plain XLA, alone and after the norms and rotations of queries and keys."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

from pallas_kernels.layout import write_slots

NORM_SCOPES = ("none", "head", "whole")


def norm_scope(norms: tuple[Array, Array] | None) -> str:
    """Whether QK-norm is "none", per "head" (weights [dim]), or over the "whole" token (weights
    [heads..., dim])."""
    if norms is None:
        return "none"
    return "head" if norms[0].ndim == 1 else "whole"


def write_cache_xla(cache: Array, layer: int | Array, k: Array, v: Array, slots: Array) -> Array:
    """See `write_cache`."""
    return write_slots(cache, layer, k, v, slots)


def rotate_and_write_xla(
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
    q, k, v = rotated_heads(qkv, rotation, norms, eps, weight_offset)
    return q, write_cache_xla(cache, layer, k, v, slots)


def rotated_heads(
    qkv: Array,
    rotation: tuple[Array, Array] | None,
    norms: tuple[Array, Array] | None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
) -> tuple[Array, Array, Array]:
    """Apply norm and rotation as in `rotate_and_write`. Returns q, k, v as [T, heads, dim]."""
    tokens, kv_heads, members, head_dim = qkv.shape
    q, k, v = qkv[:, :, :-2], qkv[:, :, -2], qkv[:, :, -1]
    if norms is not None:
        q, k = (
            normed(x, weight, eps, weight_offset) for x, weight in zip((q, k), norms, strict=True)
        )
    q = q.reshape(tokens, kv_heads * (members - 2), head_dim)
    if rotation is not None:
        q, k = (rotated(x, *rotation) for x in (q, k))
    return q, k, v


def with_finite_values(qkv: Array, dtype: DTypeLike) -> Array:
    """Zeros for values that are not finite in the cache's dtype, and NaN for the keys of their
    heads."""
    q, k, v = qkv[:, :, :-2], qkv[:, :, -2:-1], qkv[:, :, -1:]
    bad = ~jnp.isfinite(v.astype(dtype))
    k = jnp.where(jnp.any(bad, axis=-1, keepdims=True), jnp.nan, k)
    return jnp.concatenate([q, k, jnp.where(bad, 0, v)], axis=2)


def normed(x: Array, weight: Array, eps: float, weight_offset: float) -> Array:
    """x / rms(x) * (weight + offset), over as many trailing axes as the weight has."""
    axes = tuple(range(-weight.ndim, 0))
    scale = lax.rsqrt(jnp.mean(jnp.square(x), axis=axes, keepdims=True) + eps)
    return x * scale * jnp.broadcast_to(weight.astype(jnp.float32) + weight_offset, x.shape)


def rotated(x: Array, cos: Array, sin: Array) -> Array:
    """Rotate the first 2 * pairs lanes of each head, pairing lane i with i + pairs; x is [T, heads,
    dim]."""
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = (jnp.broadcast_to(part[:, None], first.shape) for part in (cos, sin))
    parts = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate([*parts, rest] if rest.size else parts, axis=-1)
