"""Expert load balancing (EPLB): expert weights in slots, more than there are experts, so that
experts can be replicated on several devices and moved while the engine runs.

A prepared weight has a matrix per slot, and an array with the expert of each slot, so moving
experts compiles nothing. Tokens use the slots of a replicated expert round-robin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import Array

from jengine.layers.initializer import Initializer
from jengine.layers.moe import Picked
from jengine.quantization.scheme import (
    Specs,
    Stored,
    Tensors,
    TensorSpec,
    WeightShape,
)
from jengine.quantization.spread_experts import SpreadExpertsScheme
from jengine.quantization.whole_experts import WholeExperts

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Int

EXPERTS = "experts"  # i32[slots]: name of the array with the expert in each slot


@dataclass(frozen=True)
class PlacedExperts(SpreadExpertsScheme):
    """Expert weights in slots, which `spread` distributes over devices."""

    spread: WholeExperts
    redundant: int  # slots beyond one per expert

    @property
    def takes_declared(self) -> bool:
        return False

    def declared(self, weight: WeightShape, dtype: Any, init: Initializer) -> Specs:
        return self.spread.declared(weight, dtype, init)

    def prepared(self, weight: WeightShape, dtype: Any) -> Specs:
        """The weight per slot, and the expert in each slot."""
        slots = self._in_slots(weight)
        assert slots.groups is not None, "the weights of experts have groups"
        experts = TensorSpec((slots.groups,), (None,), jnp.int32, Initializer())
        return {**self.spread.prepared(slots, dtype), EXPERTS: experts}

    def prepare(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Initial placement: expert i in slot i, then the first experts again in the redundant
        slots."""
        slots = self._in_slots(weight)
        assert slots.groups is not None and weight.groups is not None
        experts = jnp.arange(slots.groups, dtype=jnp.int32) % weight.groups
        own = {name: array[experts] for name, array in tensors.items()}
        return {**self.spread.prepare(slots, own), EXPERTS: experts}

    def restore(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Each expert's weight from its first slot."""
        assert weight.groups is not None
        first = first_slots(tensors[EXPERTS], weight.groups)
        own = self.spread.restore(self._in_slots(weight), without_experts(tensors))
        return {name: array[first] for name, array in own.items()}

    def mix_experts(
        self,
        gate_up: Stored,
        down: Stored,
        x: Array,
        picked: Picked,
        activation: str,
        live: Array | None,
    ) -> Array:
        """`mix_experts` over slots instead of experts."""
        assert gate_up.shape.groups is not None and picked.slots is None
        slots = slots_of(picked.experts, gate_up.tensors[EXPERTS], gate_up.shape.groups)
        weights = self._stored(gate_up), self._stored(down)
        return self.spread.mix_experts(
            *weights, x, picked._replace(experts=slots), activation, live
        )

    def _stored(self, weight: Stored) -> Stored:
        """A weight by slot; its bias, stored by expert, is expanded."""
        bias = None if weight.bias is None else weight.bias[weight.tensors[EXPERTS]]
        return Stored(self._in_slots(weight.shape), without_experts(weight.tensors), bias)

    def _in_slots(self, weight: WeightShape) -> WeightShape:
        assert weight.groups is not None, "the weights of experts have groups"
        return replace(weight, groups=weight.groups + self.redundant)


def without_experts(tensors: Tensors) -> Tensors:
    """The tensors without the slot map."""
    return {name: array for name, array in tensors.items() if name != EXPERTS}


def first_slots(experts: Int[Array, " slots"], count: int) -> Int[Array, " count"]:
    """First slot of each of `count` experts."""
    return jnp.argmax(experts[None] == jnp.arange(count)[:, None], axis=1)


def slots_of(
    picked: Int[Array, "tokens chosen"], experts: Int[Array, " slots"], count: int
) -> Int[Array, "tokens chosen"]:
    """A slot for each chosen expert; consecutive tokens use an expert's slots round-robin."""
    by_expert = jnp.argsort(experts, stable=True)
    copies = jnp.bincount(experts, length=count)
    first = jnp.cumsum(copies) - copies
    turn = jnp.arange(picked.shape[0])[:, None] % copies[picked]
    return by_expert[first[picked] + turn].astype(picked.dtype)


def moved(arrays: Mapping[str, Array], to: Int[Array, " slots"], count: int) -> dict[str, Array]:
    """Prepared arrays with the experts moved to slots `to`."""
    source = first_slots(arrays[EXPERTS], count)[to]
    return {name: to if name == EXPERTS else array[source] for name, array in arrays.items()}
