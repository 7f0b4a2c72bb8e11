"""Activations of feed-forward blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array, lax

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float

ACTIVATIONS = {
    "silu": jax.nn.silu,
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "relu": jax.nn.relu,
    "relu_squared": lambda x: jnp.square(jax.nn.relu(x)),
}
# clamped_swiglu's limits of gate and up, and the factor within the sigmoid.
SWIGLU_LIMIT, SWIGLU_ALPHA = 7.0, 1.702


def gated(both: Float[Array, "..."], activation: str, axis: int = -2) -> Float[Array, "..."]:
    """act(gate) * up; `both` holds gate and up along `axis`, which the result lacks."""
    gate, up = (lax.index_in_dim(both, half, axis, keepdims=False) for half in (0, 1))
    if activation == "clamped_swiglu":
        return clamped_swiglu(gate, up)
    return ACTIVATIONS[activation](gate) * up


def xielu(
    x: Float[Array, "*shape"],
    positive: Float[Array, "*shape"],
    negative: Float[Array, "*shape"],
    slope: Float[Array, "*shape"],
    highest: Float[Array, "*shape"],
) -> Float[Array, "*shape"]:
    """xIELU of Apertus: quadratic above zero, exponential below, each plus `slope` * x."""
    above = jax.nn.softplus(positive) * x * x
    below = (jnp.expm1(jnp.minimum(x, highest)) - x) * (slope + jax.nn.softplus(negative))
    return jnp.where(x > 0, above, below) + slope * x


def clamped_swiglu(gate: Float[Array, "*shape"], up: Float[Array, "*shape"]) -> Array:
    """gate * sigmoid(alpha * gate) * (up + 1) with gate and up clamped, as in gpt-oss."""
    gate = jnp.minimum(gate, SWIGLU_LIMIT)
    up = jnp.clip(up, -SWIGLU_LIMIT, SWIGLU_LIMIT)
    return gate * jax.nn.sigmoid(SWIGLU_ALPHA * gate) * (up + 1.0)
