"""Logits processors for tests, which other processes can import."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def only_seven(logits: Array) -> Array:
    """Token 7, whatever the model says."""
    return jnp.full_like(logits, -jnp.inf).at[7].set(0.0)


def count_up(ids: Array, logits: Array) -> Array:
    """The token after the last one, by number."""
    wanted = (ids[-1] + 1) % logits.shape[0]
    return jnp.where(jnp.arange(logits.shape[0]) == wanted, 0.0, -jnp.inf)


class OnTheHost:
    """The form of vLLM's processors, which run between steps."""

    def apply(self, logits: Array) -> Array:
        return logits
