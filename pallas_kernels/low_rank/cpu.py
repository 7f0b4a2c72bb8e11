"""Low-rank matmuls by the CPU kernel, which reads each slot's matrices once for all its rows.

A row's bits do not depend on the batch.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from pallas_kernels.cpu.low_rank import low_rank
from pallas_kernels.low_rank.rows_by_slot import SlotOrder


def multiply_low_rank_cpu(
    x: Array, down: Array, up: Array, order: SlotOrder, ranges: Array | None, base: Array | None
) -> Array:
    """See `multiply_low_rank`. Operands are not rounded to the matrices' dtype."""
    rows = x if x.dtype == jnp.bfloat16 else x.astype(jnp.float32)
    outputs = up.shape[2:]
    flat = up.reshape(*up.shape[:2], -1)
    given = None if base is None else base.astype(jnp.float32).reshape(x.shape[0], -1)
    made = low_rank(rows, order.slots, down, flat, ranges, given)
    return made.reshape(-1, *outputs)
