"""LoRA of experts: low-rank matrices of every adapter slot and expert, added to a grouped matmul.

A row of a grouped matmul is one (token, expert) pair. Rows of one slot and expert run together and
read their two matrices once: in the kernels of `pallas_kernels/low_rank`, to which each (slot,
expert) pair is a slot, or in XLA as two grouped matmuls. The update is added before the activation,
so schemes do not fuse the activation then. Must not know adapters' names or files.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from jengine.layers.moe import grouped_project
from pallas_kernels.low_rank import multiply_low_rank, slot_order
from sharding.placement import Placement

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ExpertAdapters:
    """Stacked LoRA matrices of one weight: down [slots, experts, inputs, rank] (for the CPU kernel
    [slots, experts, rank, inputs]) and up [slots, experts, rank, *outputs]."""

    down: Float[Array, "slots experts ..."]
    up: Float[Array, "slots experts rank ..."]
    axes: tuple[tuple[str | None, ...], ...] = field(metadata={"static": True})  # of both
    implementation: str = field(metadata={"static": True})

    def added(
        self,
        x: Float[Array, "rows inputs"],
        slots: Int[Array, " rows"],
        experts: Int[Array, " rows"],
        base: Float[Array, "rows ..."] | None = None,
    ) -> Float32[Array, "rows ..."]:
        """base + x @ down @ up of each row's slot and expert. Slots are numbered from 1; rows of
        slot 0 or expert -1 keep the base, or zeros."""
        count, pairs = self.down.shape[1], self.down.shape[0] * self.down.shape[1]
        pair = jnp.where((slots > 0) & (experts >= 0), (slots - 1) * count + experts + 1, 0)
        down = self.down.reshape(pairs, *self.down.shape[2:])
        up = self.up.reshape(pairs, *self.up.shape[2:])
        with jax.named_scope("adapters"):
            if self.implementation == "xla":
                made = low_rank_by_group(x, down, up, pair - 1)
                return made if base is None else base + made
            order = slot_order(pair, pairs, implementation=self.implementation)
            return multiply_low_rank(
                x, down, up, order, base=base, implementation=self.implementation
            )

    def specs(self, placement: Placement) -> ExpertAdapters:
        """Partition specs of both arrays, in a tree of this structure."""
        down, up = self.axes
        return replace(
            self, down=placement.spec(down, self.down.shape), up=placement.spec(up, self.up.shape)
        )

    def spread(self, names: tuple[str, ...]) -> ExpertAdapters:
        """Partition specs with the experts axis sharded over these mesh axes."""
        spec = PartitionSpec(None, names)
        return replace(self, down=spec, up=spec)


def low_rank_by_group(
    x: Float[Array, "rows inputs"],
    down: Float[Array, "groups inputs rank"],
    up: Float[Array, "groups rank ..."],
    groups: Int[Array, " rows"],
) -> Float32[Array, "rows ..."]:
    """x @ down[group] @ up[group] per row in XLA; zeros for group -1."""
    count, rows = down.shape[0], x.shape[0]
    without = groups < 0
    last = jnp.where(without, count, groups)  # rows without a group are sorted last
    order, sizes = jnp.argsort(last), jnp.bincount(last, length=count + 1)[:count]
    sizes = sizes.astype(jnp.int32)
    inner = grouped_project(x[order], down, sizes)
    made = grouped_project(inner, up.reshape(*up.shape[:2], -1), sizes)
    made = made[jnp.argsort(order)].reshape(rows, *up.shape[2:])
    return jnp.where(without.reshape(-1, *[1] * (made.ndim - 1)), 0.0, made)
