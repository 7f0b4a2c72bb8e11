"""Soft caps of attention scores and logits, as in Gemma."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax import Array

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float


def soft_cap(x: Float[Array, "*shape"], cap: float | None) -> Float[Array, "*shape"]:
    """cap * tanh(x / cap), which stays within (-cap, cap); None leaves x alone."""
    return x if cap is None else cap * jnp.tanh(x / cap)
