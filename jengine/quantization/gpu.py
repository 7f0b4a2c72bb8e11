"""Plain weights on NVIDIA GPUs: XLA multiplies, except by the weights of experts.

XLA's grouped matmul there multiplies every row by every expert's matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from jengine.layers.initializer import Initializer
from jengine.layers.mlp import gated
from jengine.layers.moe import Picked
from jengine.layers.norm import RowNorm
from jengine.quantization.scheme import Around, Specs, Stored, Tensors, WeightShape, finished
from jengine.quantization.unquantized import UNQUANTIZED, multiplied
from pallas_kernels.grouped_matmul import (
    ACTIVATIONS,
    Groups,
    combine_rows,
    multiply_tokens,
    sort_by_group,
)
from sharding.placement import Placement

EVERYWHERE = PartitionSpec()


@dataclass(frozen=True)
class GpuWeights:
    """The weight as it is declared. Each device runs its own part of every expert.

    Devices that have parts of a sum give them to each other in bfloat16, unless sums are `exact`.
    """

    placement: Placement
    exact: bool = False

    @property
    def takes_declared(self) -> bool:
        """Yes."""
        return True

    def declared(self, weight: WeightShape, dtype: Any, init: Initializer) -> Specs:
        """The weight."""
        return UNQUANTIZED.declared(weight, dtype, init)

    def prepared(self, weight: WeightShape, dtype: Any) -> Specs:
        """The same."""
        return UNQUANTIZED.prepared(weight, dtype)

    def prepare(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """The same arrays."""
        return tensors

    def restore(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """The same arrays."""
        return tensors

    def multiply(self, weight: WeightShape, x: Array, tensors: Tensors) -> Array:
        """In XLA."""
        return UNQUANTIZED.multiply(weight, x, tensors)

    def lookup(self, weight: WeightShape, indices: Array, tensors: Tensors) -> Array:
        """In XLA."""
        return UNQUANTIZED.lookup(weight, indices, tensors)

    def normalize(self, norm: RowNorm, x: Array) -> Array:
        """In XLA."""
        return UNQUANTIZED.normalize(norm, x)

    def softmax(self, x: Array) -> Array:
        """In XLA."""
        return UNQUANTIZED.softmax(x)

    def apply(self, weight: WeightShape, x: Array, tensors: Tensors, around: Around) -> Array:
        """In XLA. Inner results are bfloat16 in memory, and parts of sums between devices."""
        array = tensors["weight"]
        rounded = weight.inner or (self._in_parts(weight) and not self.exact)
        if not rounded or array.dtype != jnp.bfloat16:  # the range of float16 is smaller
            return UNQUANTIZED.apply(weight, x, tensors, around)
        normed = x if around.norm is None else around.norm(x)
        # Not rounded afterwards: XLA removes conversions there and back.
        made = multiplied(weight, normed, array, array.dtype).astype(jnp.float32)
        made = finished(weight, made, around)
        return made.astype(array.dtype) if weight.inner else made

    def _in_parts(self, weight: WeightShape) -> bool:
        """Whether each device has a part of every sum, as the weight's inputs are sharded."""
        spec = self.placement.spec(weight.axes, weight.shape)
        first = len(weight.outputs) if weight.outputs_first else 0
        return any(names is not None for names in spec[first : first + len(weight.inputs)])

    def multiply_groups(
        self,
        weight: WeightShape,
        x: Array,
        tensors: Tensors,
        sizes: Array,
        activation: str | None = None,
    ) -> Array:
        """In XLA; `mix_experts` does not use it."""
        return UNQUANTIZED.multiply_groups(weight, x, tensors, sizes, activation)

    def mix_experts(
        self,
        gate_up: Stored,
        down: Stored,
        x: Array,
        picked: Picked,
        activation: str,
        live: Array | None,
    ) -> Array:
        """Kernels that sort tokens by expert, multiply them, and put addends back in order.

        Experts are sharded inside, so each device has a part of every token's sum.
        """
        count, use = gate_up.shape.groups, {"implementation": "triton"}
        assert count is not None, "the weights of experts have groups"
        weights, experts = picked
        if live is not None:
            experts = jnp.where(live[:, None] < 0, -1, experts)
        specs = [self.placement.spec(one.shape.axes, one.shape.shape) for one in (gate_up, down)]
        summed = specs[1][1]  # the mesh axes of down's inputs

        def own(
            x: Array,
            weights: Array,
            experts: Array,
            first: Array,
            second: Array,
            bias: Array | None,
        ) -> Array:
            groups = sort_by_group(experts.reshape(-1), count, **use)
            inside = multiply_gated(x, first, bias, experts, groups, activation)
            made = combine_rows(inside, second, groups, weights, **use)
            if summed is None:
                return made
            narrow = second.dtype == jnp.bfloat16 and not self.exact
            parts = made.astype(second.dtype) if narrow else made
            return lax.psum(parts, summed).astype(jnp.float32)

        arrays = [one.tensors["weight"] for one in (gate_up, down)]
        bias_spec = EVERYWHERE if gate_up.bias is None else PartitionSpec(None, *specs[0][2:])
        given = (*[EVERYWHERE] * 3, *specs, bias_spec)
        run = self.placement.on_each_device(own, given, EVERYWHERE)
        made = run(x.astype(arrays[0].dtype), weights, experts, *arrays, gate_up.bias)
        return made if down.bias is None else made + weighted_biases(down.bias, weights, experts)


def multiply_gated(
    x: Array, weight: Array, bias: Array | None, experts: Array, groups: Groups, activation: str
) -> Array:
    """The gated matmul of each token with its experts, in the order of `groups`. Where there is a
    bias, or the kernel lacks the activation, XLA does what comes after the matmul."""
    matrices, outputs = weight.reshape(*weight.shape[:2], -1), weight.shape[2:]
    fused = activation if bias is None and activation in ACTIVATIONS else None
    made = multiply_tokens(x, matrices, groups, activation=fused, implementation="triton")
    if fused is not None:
        return made
    pairs = made.astype(jnp.float32).reshape(-1, *outputs)
    if bias is not None:
        pairs += bias.astype(jnp.float32)[jnp.maximum(experts.reshape(-1), 0)[groups.order]]
    return gated(pairs, activation, axis=-1)


def weighted_biases(bias: Array, weights: Array, experts: Array) -> Array:
    """The weighted sum of the biases [experts, hidden] of each token's experts; an expert of -1 has
    none."""
    total = jnp.zeros((experts.shape[0], bias.shape[1]))
    for choice in range(experts.shape[1]):
        expert = experts[:, choice]
        addend = bias.astype(jnp.float32)[jnp.maximum(expert, 0)]
        weight = jnp.where(expert < 0, 0.0, weights[:, choice])
        total += jnp.broadcast_to(weight[:, None], addend.shape) * addend
    return total
