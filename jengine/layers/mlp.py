"""Activations of feed-forward blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
from jax import Array, lax

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float

ACTIVATIONS = {
    "silu": jax.nn.silu,
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
}


def gated(both: Float[Array, "..."], activation: str, axis: int = -2) -> Float[Array, "..."]:
    """act(gate) * up; `both` holds gate and up along `axis`, which the result lacks."""
    gate, up = (lax.index_in_dim(both, half, axis, keepdims=False) for half in (0, 1))
    return ACTIVATIONS[activation](gate) * up
