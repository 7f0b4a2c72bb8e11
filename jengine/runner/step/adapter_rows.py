"""LoRA in the traced step: rows of a batch may have different adapters, or none.

In: each query tile's adapter slot, and all slots' matrices. Out: a model whose layers add each
row's adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array

from jengine.lora.weights import HEAD, LowRankWeight
from jengine.models.linear import Embedding, Linear
from jengine.quantization.expert_adapters import ExpertAdapters
from jengine.runner.step.step_input import tile_of_token
from jengine.runner.variants.buckets import Bucket, StepShapes
from jengine.weights.prepared import weighted
from pallas_kernels.low_rank import SlotOrder, multiply_low_rank, slot_order
from sharding.placement import Placement

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int

Added = Callable[[Array, Array | None], Array]


class AdapterRows:
    """Adapter slots of rows of activations."""

    def __init__(self, slots: Int[Array, " rows"], most: int, implementation: str) -> None:
        self._order: SlotOrder = slot_order(slots, most, implementation=implementation)
        self._implementation = implementation

    def added(
        self,
        weight: LowRankWeight,
        down: Float[Array, "..."],
        up: Float[Array, "..."],
        x: Float[Array, "..."],
        base: Float[Array, "..."] | None = None,
    ) -> Float32[Array, "..."]:
        """base + LoRA of the rows' adapters for x @ weight, f32 [*rows, *outputs]."""
        inputs, outputs = weight.weight.matrix[0], weight.weight.outputs
        with jax.named_scope("adapters"):
            sizes = (inputs, weight.rank) if weight.inputs_first else (weight.rank, inputs)
            made = multiply_low_rank(
                x.reshape(-1, inputs),
                down.reshape(weight.slots, *sizes),
                up,
                self._order,
                ranges=jnp.asarray(weight.ranges),
                base=None if base is None else base.reshape(-1, *outputs),
                implementation=self._implementation,
            )
        return made.reshape(*x.shape[:-1], *outputs)

    def looked_up(
        self,
        weight: LowRankWeight,
        down: Float[Array, "slots tokens rank"],
        up: Float[Array, "slots rank hidden"],
        tokens: Int[Array, " rows"],
        base: Float[Array, "rows hidden"],
    ) -> Float32[Array, "rows hidden"]:
        """base + LoRA of the rows' adapters for embedding lookups."""
        slots = self._order.slots
        with jax.named_scope("adapters"):
            inner = down[jnp.maximum(slots - 1, 0), tokens]
            inner = jnp.where(slots[:, None] > 0, inner, 0)
            same = jnp.eye(weight.rank, dtype=up.dtype)
            same = jnp.broadcast_to(same, (weight.slots, *same.shape))
            return multiply_low_rank(
                inner, same, up, self._order, base=base, implementation=self._implementation
            )


class HeadAdapters:
    """LoRA of the output head."""

    def __init__(self, weight: LowRankWeight, stacks: Sequence[Array], implementation: str) -> None:
        self._weight = weight
        self._down, self._up = stacks
        self._implementation = implementation

    def added(
        self, rows: Float[Array, "rows hidden"], slots: Int[Array, " rows"]
    ) -> Float32[Array, "rows vocab"]:
        """LoRA logits of hidden states, given each row's slot."""
        own = AdapterRows(slots, self._weight.slots, self._implementation)
        return own.added(self._weight, self._down, self._up, rows)


def token_slots(
    slots: Int[Array, " tiles"], bucket: Bucket, shapes: StepShapes
) -> Int[Array, " tokens"]:
    """Expand slots per query tile to slots per token."""
    return jnp.asarray(slots)[tile_of_token(bucket, shapes)]


def implementation_of(shapes: StepShapes, placement: Placement) -> str:
    """The LoRA implementation: the attention backend's kernels on one device; on several XLA, with
    adapters sharded like their weights."""
    return str(shapes.attention) if placement.mesh.size == 1 else "xla"


def add_adapters(
    model: Any,
    weights: Mapping[str, LowRankWeight],
    arrays: Mapping[str, Sequence[Array]],
    slots: Int[Array, " tokens"],
    implementation: str,
) -> None:
    """Install LoRA with these arrays into the traced model's layers, except the output head, whose
    rows are sampling slots."""
    modules = weighted(model)
    most = next(iter(weights.values())).slots
    rows = AdapterRows(slots, most, implementation)
    for path, stacks in arrays.items():
        if path == HEAD:
            continue
        module, weight = modules[path], weights[path]
        assert isinstance(module, (Linear, Embedding)), "adapters are for these alone"
        if weight.weight.groups is not None and isinstance(module, Linear):
            axes = tuple((None, *stack.axes[1:]) for stack in weight.stacks)
            module.group_adapters = ExpertAdapters(stacks[0], stacks[1], axes, implementation)
            module.adapter_slots = slots
            continue
        made = rows.looked_up if weight.is_table else rows.added
        module.adapters = _closure(made, weight, *stacks)


def _closure(made: Callable[..., Array], weight: LowRankWeight, down: Array, up: Array) -> Added:
    return lambda x, base: made(weight, down, up, x, base)
