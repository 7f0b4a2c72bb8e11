"""Quantization arithmetic inside jit: packing, rounding, scales.

Computed in float32. 4-bit values are two inputs per byte, the first in the low nibble.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import Array

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, UInt8

FP8 = jnp.float8_e4m3fn
# Largest absolute value of each format, to which scales map the largest of the data.
LARGEST = {"int8": 127.0, "int4": 7.0, "fp8": 448.0}
STORED: dict[str, Any] = {"int8": jnp.int8, "int4": jnp.uint8, "fp8": FP8, "fp4": jnp.uint8}
# FP4 (E2M1) values by code; the sign bit is the highest.
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Avoids 0 / 0 for all-zero groups.
SMALLEST_SCALE = 1e-12


def unpaired(values: UInt8[Array, "..."], axis: int) -> UInt8[Array, "..."]:
    """Unpack 4-bit codes along an axis, which doubles."""
    both = jnp.stack((values & 15, values >> 4), axis + 1)
    return both.reshape(*values.shape[:axis], -1, *values.shape[axis + 1 :])


def paired(codes: UInt8[Array, "..."], axis: int) -> UInt8[Array, "..."]:
    """Inverse of `unpaired`."""
    halves = codes.reshape(*codes.shape[:axis], -1, 2, *codes.shape[axis + 1 :])
    first, second = (jnp.take(halves, half, axis + 1) for half in (0, 1))
    return first | second << 4


def fp4_values(codes: UInt8[Array, "..."]) -> Float32[Array, "..."]:
    """Values of FP4 codes."""
    table = jnp.asarray((*FP4_VALUES, *(-value for value in FP4_VALUES)), jnp.float32)
    return table[codes]


def rounded(x: Float[Array, "..."], kind: str) -> Array:
    """Round x (already divided by its scale) to int8, FP8, or int4 stored as int8."""
    largest = LARGEST[kind]
    if kind == "fp8":
        return jnp.clip(x, -largest, largest).astype(FP8)
    return jnp.clip(jnp.round(x), -largest - 1, largest).astype(jnp.int8)


def scale_of(x: Float[Array, "..."], kind: str, axis: int) -> Float32[Array, "..."]:
    """Scale that maps the largest absolute value along an axis (kept) to the format's largest."""
    highest = jnp.max(jnp.abs(x.astype(jnp.float32)), axis, keepdims=True)
    return jnp.maximum(highest / LARGEST[kind], SMALLEST_SCALE)
