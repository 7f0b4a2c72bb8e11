"""Batched low-rank matmuls (LoRA): x @ down[slot] @ up[slot].

Each row of x names its slot; rows without one get zeros. `slot_order` runs once per step and
`multiply_low_rank` once per weight. `down` is [slots, rank, inputs], one matrix over all slots for
XLA; the Triton kernels take [slots, inputs, rank].
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.choice import choose
from pallas_kernels.low_rank.rows_by_slot import SlotOrder as SlotOrder
from pallas_kernels.low_rank.xla import multiply_low_rank_xla, slot_order_xla

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int

COLUMNS = 64  # that share an entry of `ranges`
ORDER = {
    "xla": slot_order_xla,
    "cpu": slot_order_xla,
    "triton": "pallas_kernels.low_rank.grouped:slot_order_triton",
}
MULTIPLY = {
    "xla": multiply_low_rank_xla,
    "cpu": "pallas_kernels.low_rank.cpu:multiply_low_rank_cpu",
    "triton": "pallas_kernels.low_rank.grouped:multiply_low_rank_triton",
}


def inputs_first(implementation: str | None, has_groups: bool = False) -> bool:
    """Whether this implementation's `down` is [slots, inputs, rank] rather than [slots, rank,
    inputs]. XLA multiplies groups of rows by the former."""
    return implementation == "triton" or (has_groups and implementation == "xla")


@partial(jax.jit, static_argnames=("num_slots", "implementation"))
def slot_order(
    slots: Int[Array, " rows"], num_slots: int, *, implementation: str | None = None
) -> SlotOrder:
    """Group rows by slot. Slots are numbered from 1; 0 is a row without one."""
    run = choose("slot_order", implementation, ORDER)
    return run(slots.astype(jnp.int32), num_slots)


@partial(jax.jit, static_argnames="implementation")
def multiply_low_rank(
    x: Float[Array, "rows inputs"],
    down: Float[Array, "slots ..."],
    up: Float[Array, "slots rank ..."],
    order: SlotOrder,
    *,
    ranges: Int[Array, "blocks 2"] | None = None,
    base: Float[Array, "rows ..."] | None = None,
    implementation: str | None = None,
) -> Float32[Array, "rows ..."]:
    """base + x @ down[slot] @ up[slot] per row; rows without a slot keep `base`, or zeros.

    `ranges` gives, per COLUMNS columns, the half-open range of ranks with nonzero entries; kernels
    may read only those. Operands are rounded to the matrices' dtype, except on CPUs; sums are
    float32.
    """
    run = choose("multiply_low_rank", implementation, MULTIPLY)
    return run(x, down, up, order, ranges, base)
