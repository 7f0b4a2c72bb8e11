from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def as_scalar(value: int | Array) -> Array:
    """As i32[1]: kernels take no scalar arguments."""
    return jnp.asarray(value, jnp.int32).reshape(1)


def next_power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
