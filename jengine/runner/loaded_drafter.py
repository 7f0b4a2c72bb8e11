"""The drafter on the device: a draft model or heads, with their parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from flax import nnx

from jengine.runner.step.leaves import LeafOrder, Leaves
from jengine.runner.step.program import DrafterProgram
from sharding.placement import Placement


class LoadedDrafter(NamedTuple):
    """A drafter's module, parameters and constructor."""

    method: Callable[[Any], Any]  # the model -> a `step.draft_stage.Drafter`
    model: nnx.Module
    order: LeafOrder
    leaves: Leaves
    first_layer: int  # index of its first layer among all layers with a KV cache
    points: tuple[str, ...] = ()  # tap points of the target model that it reads

    def on(self, part: Placement) -> LoadedDrafter:
        """The drafter on one replica's devices."""
        whole = self.order.places.whole
        if part == whole:
            return self
        places = replace(self.order.places, whole=part)
        order = LeafOrder(self.model, places, self.order.backend)
        return self._replace(order=order, leaves=tuple(map(part.part, self.leaves)))

    def program(self, first_leaf: int) -> DrafterProgram:
        """The static description of the drafter that compiled programs take."""
        return DrafterProgram(
            self.method, self.order.rebuild, first_leaf, self.first_layer, self.points
        )
