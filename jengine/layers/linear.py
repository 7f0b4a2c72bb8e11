"""Matmuls in mixed precision, in one form that is fast on every backend.

Activations are float32; an operand is cast to the weight's dtype right before the matmul and the
result stays float32 unless a backend asks for less. XLA's CPU backend has a fast path for exactly
this form of bfloat16 matmul.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32


def project(
    equation: str,
    x: Float[Array, "..."],
    weight: Float[Array, "..."],
    dtype: DTypeLike = jnp.float32,
) -> Float[Array, "..."]:
    """`einsum(equation, x, weight)` with operands of the weight's dtype and a result of `dtype`."""
    return jnp.einsum(equation, x.astype(weight.dtype), weight, preferred_element_type=dtype)


def add_bias(x: Float[Array, "*shape"], bias: Float[Array, "..."]) -> Float32[Array, "*shape"]:
    """x + bias in float32; the bias has the last axes of x."""
    return x + jnp.broadcast_to(bias.astype(jnp.float32), x.shape)
