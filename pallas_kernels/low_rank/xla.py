"""Low-rank matmuls in plain XLA: every row times every slot's matrices, masked to its own.

Two matmuls whatever the number of slots, without gather or sort, which XLA shards as any matmul.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from pallas_kernels.low_rank.rows_by_slot import SlotOrder


def slot_order_xla(slots: Array, num_slots: int) -> SlotOrder:
    """See `slot_order`."""
    return SlotOrder(slots)


def multiply_low_rank_xla(
    x: Array, down: Array, up: Array, order: SlotOrder, ranges: Array | None, base: Array | None
) -> Array:
    """See `multiply_low_rank`."""
    slots = jnp.arange(1, down.shape[0] + 1)
    inner = jnp.einsum(
        "ti,sri->tsr", x.astype(down.dtype), down, preferred_element_type=jnp.float32
    )
    own = order.slots[:, None, None] == slots[None, :, None]
    inner = jnp.where(own, inner, 0.0).astype(up.dtype)
    # Outputs keep their dimensions: joined, they could not be sharded by any but the first.
    made = jnp.einsum("tsr,sr...->t...", inner, up, preferred_element_type=jnp.float32)
    return made if base is None else base + made
