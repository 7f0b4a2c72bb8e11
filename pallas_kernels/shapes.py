"""Arithmetic on sizes and scalars that the launches of all kernels share."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def as_scalar(value: int | Array) -> Array:
    """A number that a kernel reads from memory: i32[1]."""
    return jnp.asarray(value, jnp.int32).reshape(1)


def next_power_of_two(size: int) -> int:
    """The smallest power of two that is not below `size`."""
    return 1 << (size - 1).bit_length()
