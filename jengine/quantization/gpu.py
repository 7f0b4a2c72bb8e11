"""Unquantized weights on NVIDIA GPUs: XLA's matmuls, and grouped matmul kernels for experts, since
XLA's multiplies every row by every expert.

Activations that only attention or the next matmul reads are bfloat16 (gates, queries, keys,
values), and so are all-reduced partial sums unless the engine is deterministic. The residual stream
stays float32, as does everything on CPUs.

`pallas_kernels/xla_matmul/tuning.json` chooses XLA's matmul library: cuBLASLt in programs of 64
tokens or more, which fuses the residual too (two launches less per layer), and XLA's autotuner
below. These figures are untimed; `python -m jengine.bench.gpu` measures them and rewrites the file.
`compilation_config={"matmuls": "xla"}` or `"cublaslt"` overrides it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from jengine.layers.initializer import Initializer
from jengine.layers.moe import Picked
from jengine.quantization.gpu_experts import ExpertsLayer, mixed_on_devices
from jengine.quantization.scheme import (
    Around,
    Specs,
    Stored,
    Tensors,
    WeightScheme,
    WeightShape,
    finished,
)
from jengine.quantization.unquantized import UNQUANTIZED, multiplied
from sharding.placement import Placement


@dataclass(frozen=True)
class GpuWeights(WeightScheme):
    """Declared weights, with tensor-parallel experts. Partial sums are all-reduced in bfloat16
    unless `exact`."""

    placement: Placement
    exact: bool = False

    def declared(self, weight: WeightShape, dtype: Any, init: Initializer) -> Specs:
        return UNQUANTIZED.declared(weight, dtype, init)

    def multiply(self, weight: WeightShape, x: Array, tensors: Tensors) -> Array:
        return UNQUANTIZED.multiply(weight, x, tensors)

    def lookup(self, weight: WeightShape, indices: Array, tensors: Tensors) -> Array:
        return UNQUANTIZED.lookup(weight, indices, tensors)

    def apply(self, weight: WeightShape, x: Array, tensors: Tensors, around: Around) -> Array:
        """Matmul in XLA; inner results and exchanged partial sums are bfloat16."""
        array = tensors["weight"]
        rounded = weight.inner or (self._in_parts(weight) and not self.exact)
        if not rounded or array.dtype != jnp.bfloat16:  # float16 could overflow
            return UNQUANTIZED.apply(weight, x, tensors, around)
        normed = x if around.norm is None else around.norm(x)
        # Converted back to float32 at once: later, XLA would fold the two conversions away.
        made = multiplied(weight, normed, array, array.dtype).astype(jnp.float32)
        made = finished(weight, made, around)
        return made.astype(array.dtype) if weight.inner else made

    def _in_parts(self, weight: WeightShape) -> bool:
        """Whether inputs are sharded, so that devices compute partial sums."""
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
        """Grouped matmul in XLA; `mix_experts` does not use it."""
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
        """Grouped matmul kernels; experts are tensor-parallel, so each device has partial sums of
        every token."""
        specs = [
            {"weight": self.placement.spec(one.shape.axes, one.shape.shape)}
            for one in (gate_up, down)
        ]
        layer = ExpertsLayer(gate_up, down, (specs[0], specs[1]), plain_matrices, activation)
        return mixed_on_devices(layer, x, picked, live, self.placement, exact=self.exact)


def plain_matrices(weight: WeightShape, tensors: Tensors) -> Array:
    """Expert weights as one matrix each."""
    array = tensors["weight"]
    return array.reshape(*array.shape[: 1 + len(weight.inputs)], -1)
