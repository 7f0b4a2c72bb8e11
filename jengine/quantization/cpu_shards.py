"""CPU kernels on a mesh: each device multiplies its weight shard.

Output-sharded weights give separate results. Input-sharded ones give partial sums, all-reduced
before bias, activation and residual.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from jengine.layers.initializer import Initializer
from jengine.layers.mlp import gated
from jengine.layers.norm import RowNorm
from jengine.quantization.cpu import CpuWeights
from jengine.quantization.scheme import (
    Around,
    Axes,
    Specs,
    Tensors,
    TensorSpec,
    WeightScheme,
    WeightShape,
    finished,
)
from jengine.quantization.unquantized import UNQUANTIZED
from sharding.axes import mesh_axes
from sharding.placement import Placement

Names = tuple[str, ...]  # mesh axes
EVERYWHERE = PartitionSpec()


class Shards(NamedTuple):
    """Sharding of a weight: mesh axes per dimension, and one device's shape."""

    inputs: tuple[Names, ...]
    outputs: tuple[Names, ...]
    own: WeightShape
    counts: dict[str, int]  # logical axis of each sharded dimension -> its number of shards

    @property
    def summed(self) -> Names:
        """Mesh axes over which partial sums are reduced."""
        return tuple(name for names in self.inputs for name in names)

    def weight_spec(self, weight: WeightShape) -> PartitionSpec:
        """Partition spec of the declared weight."""
        groups = () if weight.groups is None else ((),)
        first, second = self.inputs, self.outputs
        if weight.outputs_first:
            first, second = second, first
        return spec_of(*groups, *first, *second)


@dataclass(frozen=True)
class ShardedWeights(WeightScheme):
    """CPU kernels on shards. Packed shards are stacked along a leading dimension per sharded
    dimension."""

    kernels: CpuWeights
    placement: Placement

    @property
    def takes_declared(self) -> bool:
        return self.kernels.takes_declared

    def declared(self, weight: WeightShape, dtype: Any, init: Initializer) -> Specs:
        return UNQUANTIZED.declared(weight, dtype, init)

    def prepared(self, weight: WeightShape, dtype: Any) -> Specs:
        """Packed panels, stacked by device."""
        if self.takes_declared:
            return self.declared(weight, dtype, Initializer())
        counts, own = self.shards(weight).counts, self.shards(weight).own
        [spec] = self.kernels.prepared(own, dtype).values()
        shape, axes = (*counts.values(), *spec.shape), (*counts, *spec.axes)
        return {"weight": TensorSpec(shape, axes, dtype, Initializer())}

    def prepare(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Pack per device."""
        if self.takes_declared:
            return tensors
        shards = self.shards(weight)

        def pack(given: Array) -> Array:
            packed = self.kernels.prepare(shards.own, {"weight": given})["weight"]
            return packed.reshape(*[1] * len(shards.counts), *packed.shape)

        specs = shards.weight_spec(weight), self._stored_spec(weight)
        return {"weight": self.placement.on_each_device(pack, *specs)(tensors["weight"])}

    def restore(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Unpack; packing only reorders."""
        if self.takes_declared:
            return tensors
        shards = self.shards(weight)

        def unpack(packed: Array) -> Array:
            return self.kernels.restore(shards.own, self._own(shards, packed))["weight"]

        specs = self._stored_spec(weight), shards.weight_spec(weight)
        return {"weight": self.placement.on_each_device(unpack, *specs)(tensors["weight"])}

    def multiply(self, weight: WeightShape, x: Array, tensors: Tensors) -> Array:
        """An unfused matmul."""
        if weight.gated:  # packed for the fused gate, but gate and up are wanted apart
            return UNQUANTIZED.multiply(weight, x, self.restore(weight, tensors))
        return self.apply(weight, x, tensors, Around())

    def lookup(self, weight: WeightShape, indices: Array, tensors: Tensors) -> Array:
        """Rows of a table: looked up on the device that holds each, then all-reduced."""
        if self.takes_declared:
            return UNQUANTIZED.lookup(weight, indices, tensors)
        shards = self.shards(weight)
        [names], [rows] = shards.outputs, shards.own.outputs
        indices = jnp.clip(indices, 0, weight.outputs[0] - 1)

        def own_rows(indices: Array, packed: Array) -> Array:
            places = indices - (lax.axis_index(names) * rows if names else 0)
            found = self.kernels.lookup(shards.own, places, self._own(shards, packed))
            is_here = (places >= 0) & (places < rows)
            return total(jnp.where(is_here[..., None], found, 0.0), names)

        specs = EVERYWHERE, self._stored_spec(weight)
        run = self.placement.on_each_device(own_rows, specs, EVERYWHERE)
        return run(indices, tensors["weight"])

    def normalize(self, norm: RowNorm, x: Array) -> Array:
        """Norm of whole rows, replicated; XLA handles norms over several dimensions."""
        if norm.weight.ndim > 1:
            return norm(x)

        def own(x: Array, weight: Array, bias: Array | None) -> Array:
            return self.kernels.normalize(norm._replace(weight=weight, bias=bias), x)

        run = self.placement.on_each_device(own, EVERYWHERE, EVERYWHERE)
        return run(x, norm.weight, norm.bias)

    def softmax(self, x: Array) -> Array:
        """Softmax of whole rows, replicated."""
        return self.placement.on_each_device(self.kernels.softmax, (EVERYWHERE,), EVERYWHERE)(x)

    def apply(self, weight: WeightShape, x: Array, tensors: Tensors, around: Around) -> Array:
        """One fused call per device if inputs are unsharded, else partial sums."""
        if self.shards(weight).summed:
            normed = x if around.norm is None else self.normalize(around.norm, x)
            alone = Around(positions=around.positions)
            return finished(weight, self._run(weight, normed, tensors, alone), around)
        return self._run(weight, x, tensors, around)

    def _run(self, weight: WeightShape, x: Array, tensors: Tensors, around: Around) -> Array:
        """Run the kernel per device on its own x, bias, addend and residual."""
        shards = self.shards(weight)
        tokens = [()] * (x.ndim - 1)

        def own(x: Array, packed: Array, norms: Any, given: dict[str, Any]) -> Array:
            norm = None if around.norm is None else around.norm._replace(**norms)
            rows = x.reshape(*x.shape[: len(tokens)], -1)
            mine = around._replace(norm=norm, **given)
            made = self.kernels.apply(shards.own, rows, self._own(shards, packed), mine)
            return total(made, shards.summed)

        results = spec_of(*tokens, *shards.outputs[1 if weight.gated else 0 :])
        x_spec, stored = spec_of(*tokens, *shards.inputs), self._stored_spec(weight)
        own_specs = {
            "bias": spec_of(*shards.outputs),
            "addend": spec_of(*tokens, *shards.outputs),
            "residual": results,
            "positions": EVERYWHERE,
        }
        norms = around.norm and {"weight": around.norm.weight, "bias": around.norm.bias}
        split = x.reshape(*x.shape[:-1], *weight.inputs)
        given = {name: getattr(around, name) for name in own_specs}
        specs = x_spec, stored, EVERYWHERE, own_specs
        run = self.placement.on_each_device(own, specs, results)
        return run(split, tensors["weight"], norms, given)

    def multiply_groups(
        self,
        weight: WeightShape,
        x: Array,
        tensors: Tensors,
        sizes: Array,
        activation: str | None = None,
    ) -> Array:
        """Grouped matmul on each device's part of the matrices."""
        shards = self.shards(weight)
        if shards.summed and activation is not None:
            return gated(self.multiply_groups(weight, x, tensors, sizes), activation, axis=-1)

        def own(x: Array, packed: Array, sizes: Array) -> Array:
            rows, tensors = x.reshape(x.shape[0], -1), self._own(shards, packed)
            made = self.kernels.multiply_groups(shards.own, rows, tensors, sizes, activation)
            return total(made, shards.summed)

        results = shards.outputs if activation is None else shards.outputs[:-1]
        specs = spec_of((), *shards.inputs), self._stored_spec(weight), EVERYWHERE
        run = self.placement.on_each_device(own, specs, spec_of((), *results))
        return run(x.reshape(-1, *weight.inputs), tensors["weight"], sizes)

    def shards(self, weight: WeightShape) -> Shards:
        by_input, by_output = axes_of(weight)
        inputs, outputs = (
            self._names(by_input, weight.inputs),
            self._names(by_output, weight.outputs),
        )
        axes, names = (*by_input, *by_output), (*inputs, *outputs)
        ways = [math.prod(self.placement.sizes[name] for name in one) for one in names]
        counts = {str(axis): many for axis, many in zip(axes, ways, strict=True) if many > 1}
        sizes = (*weight.inputs, *weight.outputs)
        parts = tuple(size // many for size, many in zip(sizes, ways, strict=True))
        own = replace(weight, inputs=parts[: len(inputs)], outputs=parts[len(inputs) :])
        return Shards(inputs, outputs, own, counts)

    def _names(self, axes: Axes, dims: tuple[int, ...]) -> tuple[Names, ...]:
        sizes = self.placement.sizes
        return tuple(mesh_axes(axis, size, sizes) for axis, size in zip(axes, dims, strict=True))

    def fits(self, weight: WeightShape) -> bool:
        """Whether the kernels support the shards: a gated weight's inputs and gate/up axis must be
        unsharded."""
        shards = self.shards(weight)
        return not (weight.gated and (shards.summed or shards.outputs[0]))

    def _stored_spec(self, weight: WeightShape) -> PartitionSpec:
        shards = self.shards(weight)
        if self.takes_declared:
            return shards.weight_spec(weight)
        sharded = [names for names in (*shards.inputs, *shards.outputs) if names]
        return spec_of(*sharded)

    def _own(self, shards: Shards, stored: Array) -> Tensors:
        """One device's weight from its stored shard."""
        return {"weight": stored if self.takes_declared else jnp.squeeze(
            stored, tuple(range(len(shards.counts)))
        )}  # fmt: skip


def axes_of(weight: WeightShape) -> tuple[Axes, Axes]:
    """Logical axes of inputs and outputs."""
    axes = weight.axes[0 if weight.groups is None else 1 :]
    at = len(weight.outputs if weight.outputs_first else weight.inputs)
    inputs, outputs = (axes[at:], axes[:at]) if weight.outputs_first else (axes[:at], axes[at:])
    return weight.x_axes or inputs, outputs


def spec_of(*names: Names) -> PartitionSpec:
    return PartitionSpec(*(one or None for one in names))


def total(part: Array, names: Names) -> Array:
    """All-reduce of partial sums."""
    return lax.psum(part, names) if names else part
