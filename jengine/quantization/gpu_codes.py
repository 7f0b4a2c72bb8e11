"""Quantized weights on NVIDIA GPUs, dequantized in registers by Triton kernels.

XLA would write a dequantized copy in every step. Prepared: codes [*outputs, inputs], and scales and
zeros with inputs flattened. GGUF's scales become float32; the declared ones are kept for `unpack`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from jengine.layers.initializer import Initializer
from jengine.layers.moe import Picked
from jengine.quantization.codes import paired, rounded, scale_of, unpaired
from jengine.quantization.gpu_experts import ExpertsLayer, mixed_on_devices
from jengine.quantization.quantized import QuantizedWeights
from jengine.quantization.repacked import Repacked
from jengine.quantization.scheme import (
    Around,
    Specs,
    Stored,
    Tensors,
    TensorSpec,
    WeightShape,
    finished,
)
from jengine.weight_formats import WeightFormat
from pallas_kernels.quantized_matmul import CodedWeight, multiply_coded, multiply_float8
from pallas_kernels.quantized_matmul.coded import (
    exponents,
    packed,
    part_for,
    powers_of_two,
    unpacked,
)
from sharding.placement import Placement

KEPT = "declared_"  # name prefix of GGUF's declared scales
# Dtypes in which tensor cores multiply dequantized codes.
NARROW = ("bfloat16", "float16")
# Group sizes at which FP8 is multiplied by FP8.
FLOAT8_GROUPS = (32, 64, 128)


@dataclass(frozen=True)
class GpuCodes(Repacked):
    """Each device multiplies its shard; partial sums are all-reduced in bfloat16 unless `exact`.
    `float8`: tensor cores multiply FP8 by FP8."""

    placement: Placement
    exact: bool = False
    float8: bool = False

    @property
    def format(self) -> WeightFormat:
        return self.given.format.flat

    @property
    def flat(self) -> QuantizedWeights:
        """Scheme of the tensors that kernels read."""
        return QuantizedWeights(self.format, self.given.dtype)

    def fits(self, weight: WeightShape) -> bool:
        """Whether kernels support shards of this weight and beat XLA."""
        format = self.format
        if self.given.dtype not in NARROW or weight.outputs_first:
            return False
        if weight.groups is None and format.bits == 8 and not self._is_grouped(weight):
            return False  # XLA fuses the conversion into the matmul
        first, others = self._input_axes(weight)
        ways = self.placement.ways_of(first, weight.inputs[0])
        if any(self.placement.ways_of(axis, size) > 1 for axis, size in others):
            return False
        # Activation rounding needs whole rows, and static scales differ by expert.
        apart = format.static or (ways > 1 and not format.activation_groups)
        if weight.groups is not None and format.activations is not None and apart:
            return False
        inputs, groups = weight.matrix[0], self.format.groups(weight.matrix[0])
        if self.placement.ways_of(first, inputs * self.format.bits // 8) != ways:
            return False  # packed codes would be sharded differently from the inputs
        whole = ways == 1 or groups == 1 or inputs // ways % self._group(weight) == 0
        return whole and self._part(weight, inputs // ways) is not None

    def prepared(self, weight: WeightShape, dtype: Any) -> Specs:
        """Codes [*outputs, inputs], and scales [groups of inputs, *outputs]."""
        specs, lead = dict(self.flat.prepared(weight, dtype)), leading(weight)
        (axis, _), outputs = self._input_axes(weight), weight.axes[-len(weight.outputs) :]
        axes = weight.axes[: len(lead)]
        width = weight.matrix[0] * self.format.bits // 8
        old = specs["weight"]
        specs["weight"] = TensorSpec(
            (*lead, *weight.outputs, width), (*axes, *outputs, axis), old.dtype, Initializer()
        )
        for name in {"scale", "zero"} & specs.keys():
            old = specs[name]
            own = axis if old.shape[len(lead)] > 1 else None
            kind = jnp.uint8 if self.format.values == "fp4" else old.dtype
            specs[name] = replace(old, axes=(*axes, own, *outputs), dtype=kind)
        return {**specs, **self._kept(self.quantized.prepared(weight, dtype))}

    def prepare(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Quantize if needed, and convert to the kernels' layout."""
        given, lead = self.rounded(weight, tensors), leading(weight)
        found = self.quantized.flat(weight, given)
        flat = found["weight"].reshape(*lead, -1, weight.matrix[1])
        if self.format.bits == 4:
            flat = unpaired(flat, len(lead))
        codes = jnp.swapaxes(flat, -1, -2)
        if self.format.bits == 4:
            codes = packed(codes, self._part_of(weight))
        found["weight"] = codes.reshape(*lead, *weight.outputs, -1)
        if self.format.values == "fp4":
            found["scale"] = exponents(found["scale"])
        return {**found, **self._kept(given)}

    def _kept(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        blocks = self.given.format.blocks
        names = () if blocks is None else blocks.shared_dtypes
        return {KEPT + name: tensors[name] for name in names}

    def unpack(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Invert the layout."""
        found, lead = dict(tensors), leading(weight)
        codes = found["weight"].reshape(*lead, weight.matrix[1], -1)
        if self.format.bits == 4:
            codes = unpacked(codes, self._part_of(weight))
        flat = jnp.swapaxes(codes, -1, -2)
        if self.format.bits == 4:
            flat = paired(flat, len(lead))
        shape = self.quantized.prepared(weight, self.given.dtype)["weight"].shape
        found["weight"] = flat.reshape(shape)
        if self.format.values == "fp4":
            found["scale"] = powers_of_two(found["scale"])
        if self.given.format.blocks is None:
            return found
        names = self.given.format.blocks.shared_dtypes
        return {"weight": found["weight"], **{name: found[KEPT + name] for name in names}}

    def outputs_at(self, weight: WeightShape, indices: Array, tensors: Tensors) -> Tensors:
        """Select outputs: the first axis of codes, the last of scales and zeros."""
        found = {
            name: jnp.take(array, indices, axis=0 if name == "weight" else -1)
            for name, array in tensors.items()
        }
        return self.unpack(replace(weight, outputs=indices.shape), found)

    def multiply(self, weight: WeightShape, x: Array, tensors: Tensors) -> Array:
        return self._multiplied(weight, x, tensors, "float32").astype(jnp.float32)

    def apply(self, weight: WeightShape, x: Array, tensors: Tensors, around: Around) -> Array:
        """Unfused; inner results are bfloat16."""
        normed = x if around.norm is None else self.normalize(around.norm, x)
        narrow = self.given.dtype == "bfloat16" and (
            weight.inner or (self._summed(weight) is not None and not self.exact)
        )
        made = self._multiplied(weight, normed, tensors, "bfloat16" if narrow else "float32")
        made = finished(weight, made.astype(jnp.float32), around)
        return made.astype(jnp.bfloat16) if narrow and weight.inner else made

    def multiply_groups(
        self,
        weight: WeightShape,
        x: Array,
        tensors: Tensors,
        sizes: Array,
        activation: str | None = None,
    ) -> Array:
        """Grouped matmul in XLA; `mix_experts` does not use it."""
        tensors = self.unpack(weight, tensors)
        return self.quantized.multiply_groups(weight, x, tensors, sizes, activation)

    def mix_experts(
        self,
        gate_up: Stored,
        down: Stored,
        x: Array,
        picked: Picked,
        activation: str,
        live: Array | None,
    ) -> Array:
        """Grouped matmul kernels, with tokens sorted by expert."""

        def rounded_for(weight: Stored) -> Callable[[Array], Array]:
            return lambda rows: self._as_few_bits(rows, weight.shape)

        rounds = self.format.activations is not None
        specs = self._specs(gate_up.shape), self._specs(down.shape)
        layer = ExpertsLayer(
            gate_up, down, specs, self._matrices, activation,
            rounded=(rounded_for(gate_up), rounded_for(down)) if rounds else None,
        )  # fmt: skip
        return mixed_on_devices(layer, x, picked, live, self.placement, exact=self.exact)

    def _multiplied(self, weight: WeightShape, x: Array, tensors: Tensors, dtype: str) -> Array:
        """x with flattened inputs to [*tokens, *outputs]."""
        summed, use = self._summed(weight), {"dtype": dtype, "implementation": "triton"}
        as_float8 = self.float8 and self._multiplies_float8(weight)
        if self.format.activations is not None and not as_float8:
            x = self.quantized.rounded_inputs(weight, x, tensors)

        def own(x: Array, tensors: Tensors) -> Array:
            matrix = self._matrices(weight, tensors)
            rows = x.reshape(-1, x.shape[-1])
            if as_float8:
                made = multiply_float8(*float8_rows(rows, self._group(weight)), matrix, **use)
            else:
                made = multiply_coded(rows, matrix, **use)
            outputs = tensors["weight"].shape[:-1]
            made = made.reshape(*x.shape[:-1], *outputs)
            return made if summed is None else lax.psum(made, summed)

        tokens, specs = [None] * (x.ndim - 1), self._specs(weight)
        given = PartitionSpec(*tokens, summed), specs
        results = PartitionSpec(*tokens, *specs["weight"][:-1])
        run = self.placement.on_each_device(own, given, results)
        return run(x, {name: tensors[name] for name in specs})

    def _matrices(self, weight: WeightShape, tensors: Tensors) -> CodedWeight:
        """One device's tensors as the kernels' CodedWeight."""
        lead = tensors["weight"].shape[: len(leading(weight))]
        codes = tensors["weight"].reshape(*lead, -1, tensors["weight"].shape[-1])
        inputs = codes.shape[-1] * 8 // self.format.bits
        part = self._part(weight, inputs)
        assert part is not None, "this weight does not fit"
        scale, zero = (
            None if one is None else one.reshape(*lead, -1, codes.shape[-2])
            for one in (tensors["scale"], tensors.get("zero"))
        )
        assert scale is not None
        group = min(self._group(weight), inputs)
        return CodedWeight(
            codes, scale, self.format.values, group, part, jnp.dtype(self.given.dtype), zero
        )

    def _as_few_bits(self, x: Array, weight: WeightShape) -> Array:
        """Fake-quantize activations: round to few bits and back."""
        return self.quantized.rounded_inputs(weight, x, {})

    def _multiplies_float8(self, weight: WeightShape) -> bool:
        format = self.format
        return (
            format.values == "fp8" == format.activations
            and format.activation_groups
            and not format.static
            and format.group in FLOAT8_GROUPS
            and weight.matrix[0] % format.group == 0
        )

    def _specs(self, weight: WeightShape) -> dict[str, PartitionSpec]:
        """Partition specs of prepared tensors."""
        return {
            name: self.placement.spec(spec.axes, spec.shape)
            for name, spec in self.prepared(weight, self.given.dtype).items()
            if name != "input_scale"
        }

    def _summed(self, weight: WeightShape) -> Any:
        """Mesh axes over which partial sums are reduced, or None."""
        return self._specs(weight)["weight"][-1]

    def _input_axes(self, weight: WeightShape) -> tuple[str | None, list[tuple[str | None, int]]]:
        """Logical axis of the first input dimension; axes and sizes of the others."""
        first = len(leading(weight))
        own = weight.axes[first : first + len(weight.inputs)]
        return own[0], list(zip(own[1:], weight.inputs[1:], strict=True))

    def _is_grouped(self, weight: WeightShape) -> bool:
        return self.format.zeros or self.format.groups(weight.matrix[0]) > 1

    def _group(self, weight: WeightShape) -> int:
        return self.format.group or weight.matrix[0]

    def _part_of(self, weight: WeightShape) -> int:
        """The kernels' packing unit along the inputs, for one device's shard."""
        axis, _ = self._input_axes(weight)
        ways = self.placement.ways_of(axis, weight.inputs[0])
        part = self._part(weight, weight.matrix[0] // ways)
        assert part is not None, "this weight does not fit"
        return part

    def _part(self, weight: WeightShape, inputs: int) -> int | None:
        return part_for(self.format.values, inputs, min(self._group(weight), inputs))


def leading(weight: WeightShape) -> tuple[int, ...]:
    """Leading group dimension, if any."""
    return () if weight.groups is None else (weight.groups,)


def float8_rows(x: Array, group: int) -> tuple[Array, Array]:
    """Quantize rows to FP8; returns values and scales [rows, input groups]."""
    parts = x.astype(jnp.float32).reshape(x.shape[0], -1, group)
    scale = scale_of(parts, "fp8", -1)
    return rounded(parts / scale, "fp8").reshape(x.shape), scale[..., 0]


def codes_take(format: WeightFormat) -> bool:
    """Whether the kernels support this format."""
    return not format.zeros or format.values in ("int4", "int8")
