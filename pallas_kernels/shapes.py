"""Arithmetic on sizes and scalars for launches of kernels."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def as_scalar(value: int | Array) -> Array:
    """i32[1], since kernels take no run-time scalars."""
    return jnp.asarray(value, jnp.int32).reshape(1)


def next_power_of_two(size: int) -> int:
    """The smallest power of two that is not below `size`."""
    return 1 << (size - 1).bit_length()
