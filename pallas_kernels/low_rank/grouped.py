"""Low-rank matmuls by the grouped matmul kernels: a slot is a group, each row chooses one."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from pallas_kernels.grouped_matmul import combine_rows, multiply_tokens, sort_by_group
from pallas_kernels.low_rank.rows_by_slot import SlotOrder


def slot_order_triton(slots: Array, num_slots: int) -> SlotOrder:
    """See `slot_order`."""
    return SlotOrder(slots, sort_by_group(slots - 1, num_slots, implementation="triton"))


def multiply_low_rank_triton(
    x: Array, down: Array, up: Array, order: SlotOrder, ranges: Array | None, base: Array | None
) -> Array:
    """See `multiply_low_rank`. Results are rounded to the matrices' dtype."""
    inner = multiply_tokens(x, down, order.groups, implementation="triton")
    ones = jnp.ones((x.shape[0], 1), jnp.float32)
    outputs, flat = up.shape[2:], up.reshape(*up.shape[:2], -1)
    made = combine_rows(inner, flat, order.groups, ones, implementation="triton")
    made = made.reshape(-1, *outputs)
    return made if base is None else base + made
