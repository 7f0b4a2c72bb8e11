"""Normalisation over the last axes, in float32: as many axes as the weight has."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x / rms(x) * weight."""
    x = x.astype(jnp.float32)
    scale = lax.rsqrt(jnp.mean(jnp.square(x), axis=_last_axes(weight), keepdims=True) + eps)
    return x * scale * jnp.broadcast_to(weight.astype(jnp.float32), x.shape)


def layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    """(x - mean(x)) / std(x) * weight + bias."""
    x = x.astype(jnp.float32)
    centred = x - jnp.mean(x, axis=_last_axes(weight), keepdims=True)
    normed = rms_norm(centred, weight, eps)
    return normed + jnp.broadcast_to(bias.astype(jnp.float32), x.shape)


def _last_axes(weight: Array) -> tuple[int, ...]:
    return tuple(range(-weight.ndim, 0))
