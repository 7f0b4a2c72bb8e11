"""Expert parallelism: whole experts distributed over devices.

Each device has the same number of experts and runs the tokens that picked them; partial sums per
token are all-reduced, or exchanged as `expert_exchange` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from jengine.layers.initializer import Initializer
from jengine.layers.moe import Picked
from jengine.quantization.expert_adapters import ExpertAdapters
from jengine.quantization.expert_exchange import EXCHANGES, Spread
from jengine.quantization.scheme import (
    Specs,
    Stored,
    Tensors,
    WeightScheme,
    WeightShape,
)
from jengine.quantization.spread_experts import SpreadExpertsScheme
from sharding.axes import DATA, mesh_axes
from sharding.placement import Placement

EVERYWHERE = PartitionSpec()
# Tensors, bias and adapters of one device's experts.
Own = tuple[Tensors, Array | None, ExpertAdapters | None]


@dataclass(frozen=True)
class WholeExperts(SpreadExpertsScheme):
    """Expert weights, of which each device stores its experts with scheme `own`."""

    own: WeightScheme
    placement: Placement
    rounds_sums: bool  # partial sums are exchanged in the dtype of the activations

    @property
    def takes_declared(self) -> bool:
        return self.own.takes_declared

    def declared(self, weight: WeightShape, dtype: Any, init: Initializer) -> Specs:
        return self.own.declared(weight, dtype, init)

    def prepared(self, weight: WeightShape, dtype: Any) -> Specs:
        """As `own`, with the leading dimension sharded by expert."""
        return {
            name: replace(spec, axes=("experts", *[None] * (len(spec.shape) - 1)))
            for name, spec in self.own.prepared(weight, dtype).items()
        }

    def prepare(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Prepare per device."""
        return self._on_own(self.own.prepare, weight, tensors)

    def restore(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Restore per device."""
        return self._on_own(self.own.restore, weight, tensors)

    def unpack(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Unpack per device."""
        return self._on_own(self.own.unpack, weight, tensors)

    def mix_experts(
        self,
        gate_up: Stored,
        down: Stored,
        x: Array,
        picked: Picked,
        activation: str,
        live: Array | None,
    ) -> Array:
        """Sum over devices of their experts' outputs."""
        names, placement = self._names(gate_up.shape), self.placement
        shapes = [self._part(gate_up.shape), self._part(down.shape)]
        count = shapes[0].groups
        assert count is not None, "the weights of experts have groups"
        exchange = EXCHANGES[placement.expert_exchange]
        apart = (DATA,) if placement.joint else ()
        spread = Spread(apart, names, placement.ways("experts"), count, placement.is_cpu)

        def part(x: Array, picked: Picked, live: Array | None, first: Own, second: Own) -> Array:
            weights = Stored(shapes[0], *first), Stored(shapes[1], *second)

            def mix(x: Array, own: Picked, live: Array | None) -> Array:
                made = self.own.mix_experts(*weights, x, own, activation, live)
                return made.astype(x.dtype) if self.rounds_sums else made

            return exchange(mix, x, picked, live, spread).astype(jnp.float32)

        own = PartitionSpec(names)
        specs = [
            (own, own, None if one.adapters is None else one.adapters.spread(names))
            for one in (gate_up, down)
        ]
        given = (EVERYWHERE, EVERYWHERE, EVERYWHERE, *specs)
        run = placement.on_each_device(part, given, EVERYWHERE)
        return run(x, picked, live, gate_up[1:], down[1:])

    def _on_own(
        self,
        convert: Callable[[WeightShape, Tensors], Tensors],
        weight: WeightShape,
        tensors: Tensors,
    ) -> Tensors:
        """Run a conversion per device on its experts."""
        apart, part = PartitionSpec(self._names(weight)), self._part(weight)

        def own(given: Mapping[str, Array]) -> Mapping[str, Array]:
            return dict(convert(part, given))

        return self.placement.on_each_device(own, (apart,), apart)(dict(tensors))

    def _names(self, weight: WeightShape) -> tuple[str, ...]:
        """Mesh axes that experts are sharded over."""
        assert weight.groups is not None, "the weights of experts have groups"
        return mesh_axes("experts", weight.groups, self.placement.axis_sizes)

    def _part(self, weight: WeightShape) -> WeightShape:
        """One device's part of the weight."""
        assert weight.groups is not None, "the weights of experts have groups"
        return replace(weight, groups=weight.groups // self.placement.ways("experts"))
