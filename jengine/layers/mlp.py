"""Feed-forward blocks: with a gate, and plain."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from jengine.layers.linear import add_bias, project

ACTIVATIONS = {
    "silu": jax.nn.silu,
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
}


def gated_mlp(x: Array, gate_up: Array, down: Array, activation: str) -> Array:
    """down(act(gate(x)) * up(x)); gate_up is [hidden, 2, inner] so that both are one product."""
    inner = gated(project("...h,hgi->...gi", x, gate_up), activation)
    return jnp.asarray(project("...i,ih->...h", inner, down))


def gated(both: Array, activation: str, axis: int = -2) -> Array:
    """act(gate) * up, given both side by side along an axis of two."""
    gate, up = (lax.index_in_dim(both, half, axis, keepdims=False) for half in (0, 1))
    return ACTIVATIONS[activation](gate) * up


def plain_mlp(
    x: Array, up: Array, up_bias: Array, down: Array, down_bias: Array, activation: str
) -> Array:
    """down(act(up(x))), with biases."""
    inner = ACTIVATIONS[activation](add_bias(project("...h,hi->...i", x, up), up_bias))
    return add_bias(project("...i,ih->...h", inner, down), down_bias)
