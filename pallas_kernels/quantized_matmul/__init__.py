"""Matmuls with quantized weights, dequantized in registers.

`multiply_coded` takes float activations; `multiply_float8` takes FP8 activations with a scale per
row and input group (DeepSeek's blocks). `coded.CodedWeight` is the weight, also of experts, whose
matmuls are in `pallas_kernels.grouped_matmul`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.choice import choose
from pallas_kernels.quantized_matmul.coded import CodedWeight as CodedWeight
from pallas_kernels.quantized_matmul.xla import multiply_coded_xla, multiply_float8_xla

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float8e4m3fn, Float32

MODULE = "pallas_kernels.quantized_matmul.triton"
CODED = {"xla": multiply_coded_xla, "triton": f"{MODULE}:multiply_coded_triton"}
FLOAT8 = {"xla": multiply_float8_xla, "triton": f"{MODULE}:multiply_float8_triton"}


@partial(jax.jit, static_argnames=("dtype", "implementation"))
def multiply_coded(
    x: Float[Array, "rows inputs"],
    weight: CodedWeight,
    *,
    dtype: str = "float32",
    implementation: str | None = None,
) -> Float[Array, "rows columns"]:
    """x @ weight in `dtype`. Operands are rounded to the weight's dtype; sums are float32."""
    run = choose("multiply_coded", implementation, CODED)
    return run(x.astype(weight.dtype), weight, jnp.dtype(dtype))


@partial(jax.jit, static_argnames=("dtype", "implementation"))
def multiply_float8(
    x: Float8e4m3fn[Array, "rows inputs"],
    x_scales: Float32[Array, "rows groups"],
    weight: CodedWeight,
    *,
    dtype: str = "float32",
    implementation: str | None = None,
) -> Float[Array, "rows columns"]:
    """x @ weight in `dtype`, with FP8 operands scaled per group of inputs."""
    run = choose("multiply_float8", implementation, FLOAT8)
    return run(x, x_scales, weight, jnp.dtype(dtype))
