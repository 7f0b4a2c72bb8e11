from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

# Of an H100 and an H200; used when compiling without a device.
USUAL_MULTIPROCESSORS = 132


def as_scalar(value: int | Array) -> Array:
    """An i32[1] array: kernels take no scalar arguments."""
    return jnp.asarray(value, jnp.int32).reshape(1)


def next_power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def multiprocessors() -> int:
    """Multiprocessors of this process's first device."""
    return getattr(jax.local_devices()[0], "core_count", None) or USUAL_MULTIPROCESSORS


def filling(waves: int) -> int:
    """Number of programs that fill a device `waves` times."""
    return waves * multiprocessors()
