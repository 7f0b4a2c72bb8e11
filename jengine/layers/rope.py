"""Rotary position embedding: angles once per step, rotation once per layer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jax import Array

from jengine.config import RopeConfig

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int


def inverse_frequencies(config: RopeConfig, head_dim: int) -> np.ndarray:
    """The angle per position of each rotated pair, float32 [head_dim / 2]."""
    # Rounded to float32 exactly where the models were trained with it: a last-place error here is
    # multiplied by the position. numpy's power of float32 is off by up to four last places.
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    powers = np.power(np.float64(config.theta), exponents.astype(np.float64))
    plain = np.float32(1.0) / powers.astype(np.float32)
    if config.kind == "linear":
        return plain / np.float32(config.factor)
    if config.kind == "llama3":
        return _llama3_frequencies(config, plain)
    return plain


def _llama3_frequencies(config: RopeConfig, plain: np.ndarray) -> np.ndarray:
    """Long wavelengths are stretched by `factor`, short ones kept, those between are blended."""
    wavelength = 2 * math.pi / plain
    longest_kept = config.original_max_position / config.high_freq_factor
    shortest_stretched = config.original_max_position / config.low_freq_factor
    span = config.high_freq_factor - config.low_freq_factor
    blend = (config.original_max_position / wavelength - config.low_freq_factor) / span
    between = (1 - blend) * plain / config.factor + blend * plain
    stretched = np.where(wavelength > shortest_stretched, plain / config.factor, between)
    return np.where(wavelength < longest_kept, plain, stretched).astype(np.float32)


def rotation(
    positions: Int[Array, "*tokens"], config: RopeConfig, head_dim: int
) -> tuple[Float32[Array, "*tokens pairs"], Float32[Array, "*tokens pairs"]]:
    """cos and sin for each position; there are head_dim / 2 pairs."""
    frequencies = jnp.asarray(inverse_frequencies(config, head_dim))
    angles = jnp.einsum("...,d->...d", positions.astype(jnp.float32), frequencies)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(
    x: Float[Array, "*tokens heads dim"],
    cos: Float[Array, "*tokens pairs"],
    sin: Float[Array, "*tokens pairs"],
) -> Float[Array, "*tokens heads dim"]:
    """Rotate each head: lane i of its first half forms a pair with lane i of its second half."""
    first, second = jnp.split(x, 2, axis=-1)
    cos = jnp.broadcast_to(cos[..., None, :], first.shape)
    sin = jnp.broadcast_to(sin[..., None, :], first.shape)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
