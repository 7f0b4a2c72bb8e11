"""Normalisation in float32, over as many of the last axes as the weight has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax import Array, lax

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32


def rms_norm(
    x: Float[Array, "*shape"], weight: Float[Array, "..."], eps: float
) -> Float32[Array, "*shape"]:
    """x / rms(x) * weight."""
    x = x.astype(jnp.float32)
    scale = lax.rsqrt(jnp.mean(jnp.square(x), axis=_last_axes(weight), keepdims=True) + eps)
    return x * scale * jnp.broadcast_to(weight.astype(jnp.float32), x.shape)


def layer_norm(
    x: Float[Array, "*shape"],
    weight: Float[Array, "*features"],
    bias: Float[Array, "*features"],
    eps: float,
) -> Float32[Array, "*shape"]:
    """(x - mean(x)) / std(x) * weight + bias."""
    x = x.astype(jnp.float32)
    centred = x - jnp.mean(x, axis=_last_axes(weight), keepdims=True)
    normed = rms_norm(centred, weight, eps)
    return normed + jnp.broadcast_to(bias.astype(jnp.float32), x.shape)


def _last_axes(weight: Array) -> tuple[int, ...]:
    return tuple(range(-weight.ndim, 0))
