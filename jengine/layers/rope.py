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


def inverse_frequencies(config: RopeConfig, head_dim: int, longest: int) -> np.ndarray:
    """Rotation angle per position of each pair, float32 [head_dim / 2]; 0 for pairs without
    rotation.

    `longest` is the maximum sequence length, which some scaling types depend on.
    """
    rotated = head_dim if config.rotated is None else config.rotated
    found = _rotated_frequencies(config, rotated, longest)
    return np.pad(found, (0, (head_dim - rotated) // 2))


def _rotated_frequencies(config: RopeConfig, head_dim: int, longest: int) -> np.ndarray:
    # Rounded to float32 exactly where the models were trained with it: a last-place error here is
    # multiplied by the position. numpy's power of float32 is off by up to four last places.
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    theta = _stretched_base(config, head_dim, longest) if config.kind == "dynamic" else config.theta
    powers = np.power(np.float64(theta), exponents.astype(np.float64))
    if config.kind == "longrope":
        # Depends on the maximum length alone: cached keys keep their rotation as a sequence grows.
        is_long = longest > config.original_max_position
        factors = config.long_factors if is_long else config.short_factors
        return np.float32(1.0) / (np.asarray(factors, np.float32) * powers.astype(np.float32))
    plain = np.float32(1.0) / powers.astype(np.float32)
    if config.kind == "proportional":
        rotated = np.arange(head_dim // 2) < config.pairs
        return np.where(rotated, plain / np.float32(config.factor), np.float32(0.0))
    if config.kind == "linear":
        return plain / np.float32(config.factor)
    if config.kind == "llama3":
        return _llama3_frequencies(config, plain)
    if config.kind == "yarn":
        return _yarn_frequencies(config, plain)
    return plain


def _stretched_base(config: RopeConfig, head_dim: int, longest: int) -> float:
    """Base of dynamic NTK scaling, fixed for the maximum sequence length: cached keys keep their
    rotation, so the base cannot change as a sequence grows."""
    share = max(longest, config.original_max_position) / config.original_max_position
    stretch = config.factor * share - (config.factor - 1)
    return config.theta * stretch ** (head_dim / (head_dim - 2))


def _llama3_frequencies(config: RopeConfig, plain: np.ndarray) -> np.ndarray:
    """Llama 3 scaling: long wavelengths are stretched by `factor`, short ones kept, those between
    blended."""
    wavelength = 2 * math.pi / plain
    longest_kept = config.original_max_position / config.high_freq_factor
    shortest_stretched = config.original_max_position / config.low_freq_factor
    span = config.high_freq_factor - config.low_freq_factor
    blend = (config.original_max_position / wavelength - config.low_freq_factor) / span
    between = (1 - blend) * plain / config.factor + blend * plain
    stretched = np.where(wavelength > shortest_stretched, plain / config.factor, between)
    return np.where(wavelength < longest_kept, plain, stretched).astype(np.float32)


def _yarn_frequencies(config: RopeConfig, plain: np.ndarray) -> np.ndarray:
    """YaRN: pairs that turn often within the original length keep their frequency, those that turn
    rarely are divided by `factor`, with a linear blend by pair index between."""
    pairs = len(plain)

    def pair_of(turns: float) -> float:
        """Fractional index of the pair with this many `turns` within the original length."""
        span = math.log(config.original_max_position / (turns * 2 * math.pi))
        return pairs * span / math.log(config.theta)

    first, last = pair_of(config.beta_fast), pair_of(config.beta_slow)
    if config.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    width = np.float32(last - first if last != first else 0.001)
    stretched = np.clip((np.arange(pairs, dtype=np.float32) - np.float32(first)) / width, 0, 1)
    slow = plain / np.float32(config.factor)
    return (slow * stretched + plain * (1 - stretched)).astype(np.float32)


def rotation(
    positions: Int[Array, "*tokens"],
    config: RopeConfig,
    head_dim: int,
    longest: int,
    mrope_positions: Int[Array, "axes ..."] | None = None,
) -> tuple[Float32[Array, "*tokens pairs"], Float32[Array, "*tokens pairs"]]:
    """Return (cos, sin) per position, head_dim / 2 pairs each.

    `mrope_positions` are positions by (frame, row, column), for multimodal RoPE (sections).
    """
    frequencies = jnp.asarray(inverse_frequencies(config, head_dim, longest))
    if mrope_positions is not None and config.sections:
        own = mrope_positions[jnp.asarray(config.mrope_axes(head_dim // 2))].astype(
            jnp.float32
        )  # [pairs, tokens]
        angles = jnp.einsum("d...,d->...d", own, frequencies)
    else:
        angles = jnp.einsum("...,d->...d", positions.astype(jnp.float32), frequencies)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    if config.attention_factor == 1.0:
        return cos, sin
    rotated = head_dim if config.rotated is None else config.rotated
    factors = np.ones(head_dim // 2, np.float32)
    factors[: rotated // 2] = config.attention_factor
    scale = jnp.broadcast_to(jnp.asarray(factors), cos.shape)
    return cos * scale, sin * scale


def rotate(
    x: Float[Array, "*tokens heads dim"],
    cos: Float[Array, "*tokens pairs"],
    sin: Float[Array, "*tokens pairs"],
) -> Float[Array, "*tokens heads dim"]:
    """Rotate each head; lane i of the first half pairs with lane i of the second half."""
    first, second = jnp.split(x, 2, axis=-1)
    return _turned(first, second, cos, sin)


def rotate_neighbours(
    x: Float[Array, "*tokens heads dim"],
    cos: Float[Array, "*tokens pairs"],
    sin: Float[Array, "*tokens pairs"],
) -> Float[Array, "*tokens heads dim"]:
    """Rotate each head; lanes 2i and 2i + 1 form a pair.

    Returns the first lanes of all pairs, then the second lanes: q . k does not depend on lane
    order.
    """
    return _turned(x[..., ::2], x[..., 1::2], cos, sin)


def _turned(first: Array, second: Array, cos: Array, sin: Array) -> Array:
    cos = jnp.broadcast_to(cos[..., None, :], first.shape)
    sin = jnp.broadcast_to(sin[..., None, :], first.shape)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
