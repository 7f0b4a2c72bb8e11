"""Activations of feed-forward blocks."""

from __future__ import annotations

import jax
from jax import Array, lax

ACTIVATIONS = {
    "silu": jax.nn.silu,
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
}


def gated(both: Array, activation: str, axis: int = -2) -> Array:
    """act(gate) * up, given both side by side along an axis of two."""
    gate, up = (lax.index_in_dim(both, half, axis, keepdims=False) for half in (0, 1))
    return ACTIVATIONS[activation](gate) * up
