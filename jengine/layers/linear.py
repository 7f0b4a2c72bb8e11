"""Matmuls in the one form that is fast everywhere.

Activations are float32; an operand is cast to the weight's dtype right before the matmul and the
result stays float32. XLA on the CPU has a fast path for exactly this form of bfloat16 matmul.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def project(equation: str, x: Array, weight: Array) -> Array:
    """`einsum(equation, x, weight)` with the weight's precision in and float32 out."""
    return jnp.einsum(equation, x.astype(weight.dtype), weight, preferred_element_type=jnp.float32)


def add_bias(x: Array, bias: Array) -> Array:
    """x + bias over the last axes, in float32."""
    return x + jnp.broadcast_to(bias.astype(jnp.float32), x.shape)
