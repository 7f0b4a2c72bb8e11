"""Normalisation over the last axis, in float32."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x / rms(x) * weight over the last axis."""
    x = x.astype(jnp.float32)
    scale = lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + eps)
    return x * scale * jnp.broadcast_to(weight.astype(jnp.float32), x.shape)
