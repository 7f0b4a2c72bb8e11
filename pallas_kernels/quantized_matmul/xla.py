"""Quantized matmuls in plain XLA, on dequantized operands."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from pallas_kernels.quantized_matmul.coded import CodedWeight


def multiply_coded_xla(x: Array, weight: CodedWeight, dtype: DTypeLike) -> Array:
    """See `multiply_coded`."""
    return jnp.dot(x, weight.plain(), preferred_element_type=jnp.float32).astype(dtype)


def multiply_float8_xla(x: Array, x_scales: Array, weight: CodedWeight, dtype: DTypeLike) -> Array:
    """See `multiply_float8`."""
    numbers = x.astype(jnp.float32) * jnp.repeat(x_scales, weight.group, -1)
    return jnp.dot(numbers, weight.exact(), precision="highest").astype(dtype)
