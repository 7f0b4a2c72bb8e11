"""Soft caps: numbers bent smoothly into a range, as Gemma does with scores and logits."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def soft_cap(x: Array, cap: float | None) -> Array:
    """cap * tanh(x / cap), which stays within (-cap, cap); None leaves x alone."""
    return x if cap is None else cap * jnp.tanh(x / cap)
