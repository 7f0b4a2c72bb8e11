"""Whether arrays are the same memory."""

from __future__ import annotations

import jax

from jengine.weights.live import buffers


def shares_memory(one: jax.Array, other: jax.Array) -> bool:
    """Whether two arrays have a buffer in common."""
    return one is other or bool(buffers(one) & buffers(other))
