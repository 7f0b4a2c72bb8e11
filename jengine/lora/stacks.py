"""Device arrays with the adapters of all slots, for one replica.

In: adapters in host memory and their slots. Out: the arrays that steps take. Writes are queued like
steps, so steps queued before a write still see the slot's previous adapter.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jengine.lora.adapter import Adapter
from jengine.lora.store import AdapterStore
from jengine.lora.weights import LowRankWeight
from sharding.placement import Placement, put

logger = logging.getLogger(__name__)
Arrays = tuple[jax.Array, ...]


class AdapterStacks:
    """Two arrays per adapted weight, each with a leading axis of slots."""

    def __init__(
        self,
        weights: Mapping[str, LowRankWeight],
        dtype: Any,
        placement: Placement,
        store: AdapterStore,
        implementation: str = "xla",
    ) -> None:
        self.weights = weights
        self.implementation = implementation  # of low-rank matmuls
        self.store = store
        self._dtype = jnp.dtype(dtype)
        stacks = [stack for weight in weights.values() for stack in weight.stacks]
        self._shapes = tuple(
            jax.ShapeDtypeStruct(
                stack.shape, self._dtype, sharding=placement.sharding(stack.axes, stack.shape)
            )
            for stack in stacks
        )
        # Shapes of one slot's arrays, as transferred from the host.
        slot = [stack for weight in weights.values() for stack in weight.of_slot.stacks]
        self._slot_shapes = [stack.shape for stack in slot]
        self._slot_shardings = [placement.sharding(stack.axes, stack.shape) for stack in slot]
        self._everywhere = placement.everywhere
        self._held: dict[int, str] = {}  # slot -> digest
        self._write: Any = None
        shardings = tuple(one.sharding for one in self._shapes)
        self._make = jax.jit(self._zeros, out_shardings=shardings).lower().compile()
        self.leaves: Arrays = self._make()

    def drop(self) -> None:
        """Release the arrays until `fill`; steps already queued keep them alive."""
        self.leaves = ()

    def fill(self) -> None:
        """Reallocate after `drop`, and reload slots whose adapters are still in host memory."""
        if self.leaves:
            return
        self.leaves = self._make()
        held, self._held = self._held, {}
        for slot, digest in held.items():
            if self.store.find(digest) is not None:
                self.hold(slot, digest)

    def _zeros(self) -> Arrays:
        return tuple(jnp.zeros(one.shape, one.dtype) for one in self._shapes)

    @property
    def shapes(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return self._shapes

    def holds(self, slot: int, digest: str) -> bool:
        """Whether an adapter is in a slot."""
        return self._held.get(slot) == digest

    def hold(self, slot: int, digest: str) -> None:
        """Load an adapter into a slot (numbered from 1), unless it is there. If the store lacks the
        adapter, log an error and make its rows fail."""
        if self.holds(slot, digest):
            return
        adapter = self.store.find(digest)
        if adapter is None:
            # NaN weights: rows of this slot get NaN logits and fail; other rows are unaffected.
            logger.error("the LoRA adapter %s is not loaded here; its requests fail", digest[:12])
        self._write_slot(slot, adapter)
        self._held[slot] = digest

    def warm_up(self) -> None:
        """Compile the slot-writing program."""
        self._write_slot(1, Adapter(0, {}))
        self._held.pop(1, None)

    def _write_slot(self, slot: int, adapter: Adapter | None) -> None:
        arrays = [
            put(array, sharding)
            for array, sharding in zip(self._filled(adapter), self._slot_shardings, strict=True)
        ]
        if self._write is None:
            self._write = self._compiled(arrays)
        self.leaves = self._write(self.leaves, np.int32(slot - 1), tuple(arrays))

    def _filled(self, adapter: Adapter | None) -> list[np.ndarray]:
        if adapter is None:  # NaN in each down matrix, zeros in each up matrix
            values = (np.nan, 0.0)
            return [
                np.full(shape, values[index % 2], self._dtype)
                for index, shape in enumerate(self._slot_shapes)
            ]
        return [
            array
            for weight in self.weights.values()
            for array in weight.filled(adapter.parts, self._dtype)
        ]

    def _compiled(self, arrays: list[jax.Array]) -> Any:
        given = tuple(
            jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=sharding)
            for one, sharding in zip(arrays, self._slot_shardings, strict=True)
        )
        index = jax.ShapeDtypeStruct((), jnp.int32, sharding=self._everywhere)
        shardings = tuple(one.sharding for one in self._shapes)
        jitted = jax.jit(with_slot, donate_argnums=0, out_shardings=shardings)
        return jitted.lower(self._shapes, index, given).compile()


def with_slot(stacks: Arrays, slot: jax.Array, given: Arrays) -> Arrays:
    """Write arrays [stages, ...] into a slot of the stacked arrays."""

    def written(stack: jax.Array, array: jax.Array) -> jax.Array:
        by_stage = stack.reshape(len(array), -1, *stack.shape[1:])
        return by_stage.at[:, slot].set(array).reshape(stack.shape)

    return tuple(map(written, stacks, given))
