"""The gated feed-forward block."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from jengine.layers.linear import project

ACTIVATIONS = {
    "silu": jax.nn.silu,
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
}


def gated_mlp(x: Array, gate_up: Array, down: Array, activation: str) -> Array:
    """down(act(gate(x)) * up(x)); gate_up is [hidden, 2, inner] so that both are one product."""
    both = project("...h,hgi->...gi", x, gate_up)
    inner = ACTIVATIONS[activation](both[..., 0, :]) * both[..., 1, :]
    return jnp.asarray(project("...i,ih->...h", inner, down))
