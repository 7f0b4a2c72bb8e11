"""Integer weights of 8 bits or fewer in CPU kernels.

Prepared: packed codes, with scales and zeros in panel order: float32, or for GGUF blocks in the
file's bits. Codes are dequantized in registers and sums scaled per input group, so weights are
never rounded to the model's dtype. Where the format rounds activations to int8, the kernel does so
and multiplies integers: their sums are exact, and results are bit-equal to XLA's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax import Array

from jengine.layers.initializer import Initializer
from jengine.layers.norm import RowNorm
from jengine.quantization.codes import paired, unpaired
from jengine.quantization.cpu import PACKED, fused, grouped, groups_of
from jengine.quantization.repacked import Repacked
from jengine.quantization.scheme import (
    Around,
    Specs,
    Tensors,
    TensorSpec,
    WeightShape,
)
from jengine.weight_formats import IQ4_VALUES, Integers, WeightFormat
from pallas_kernels.cpu import codes as kernels
from pallas_kernels.cpu.matmul import ACTIVATIONS, PANEL, Scales

MIDDLE = {"int8": 128, "int4": 8}  # offset of stored zeros, which are for unsigned codes


@dataclass(frozen=True)
class CpuCodes(Repacked):
    def fits(self, weight: WeightShape) -> bool:
        """Whether the kernels support this group size."""
        return kernels.scales_fit(self._group(weight), weight.matrix[0], self._factors)

    def prepared(self, weight: WeightShape, dtype: Any) -> Specs:
        """Packed codes and scales."""
        (inputs, outputs), gated = weight.matrix, weight.gated
        bits = kernels.bits_of(self._codes)
        codes = kernels.packed_codes_shape(inputs, outputs, bits, self._factors, gated)
        shapes = {"weight": (codes, jnp.int8 if bits == 8 else jnp.uint8)}
        for name, stored in self.format.shared_dtypes("float32").items():
            groups, kind = self.format.groups(inputs, name), self._kind(name)
            if kind is None:
                dtype = stored if self.format.blocks else "float32"
                shapes[name] = (codes[0], groups, PANEL), jnp.dtype(dtype)
            else:
                bits = kernels.bits_of(kind)
                shape = kernels.packed_codes_shape(groups, outputs, bits, "float32", gated)
                shapes[name] = shape, jnp.int8 if bits == 8 else jnp.uint8
        found = {
            name: TensorSpec(
                (*groups_of(weight), *shape), (None,) * (len(groups_of(weight)) + 3), kind,
                Initializer(),
            )
            for name, (shape, kind) in shapes.items()
        }  # fmt: skip
        return {**found, **static_scale(self.quantized.prepared(weight, dtype))}

    def prepare(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Quantize if needed, and pack."""
        flat = {
            name: array.reshape(*groups_of(weight), -1, weight.matrix[1])
            for name, array in self.rounded(weight, tensors).items()
        }
        found = {"weight": self._packed_codes(weight, flat["weight"])}
        for name in self.format.shared_dtypes("float32"):
            found[name] = self._packed_shared(name, flat[name], weight.gated)
        return {**found, **static_scale(tensors)}

    def _packed_codes(self, weight: WeightShape, codes: Array) -> Array:
        blocks, (inputs, _), gated = self.format.blocks, weight.matrix, weight.gated
        if blocks is None or (self._declares_pairs and blocks.codes.bits == 4):
            return kernels.pack_codes(codes, inputs, self._factors, gated)
        if self._declares_pairs:
            codes = unpaired(codes, codes.ndim - 2) - jnp.uint8(8 * blocks.codes.signed)
        kind = self._codes
        return kernels.pack_codes(unsigned(codes, kind), inputs, self._factors, gated, kind)

    def _unpacked_codes(self, weight: WeightShape, packed: Array) -> Array:
        blocks, (inputs, outputs), gated = self.format.blocks, weight.matrix, weight.gated
        if blocks is None or (self._declares_pairs and blocks.codes.bits == 4):
            return kernels.unpack_codes(packed, inputs, outputs, self._factors, gated)
        kind = self._codes
        codes = kernels.unpack_codes(packed, inputs, outputs, self._factors, gated, kind)
        codes = numbers(codes, kind)
        if self._declares_pairs:
            return paired(
                codes.astype(jnp.uint8) + jnp.uint8(8 * blocks.codes.signed), codes.ndim - 2
            )
        return codes

    def _packed_shared(self, name: str, array: Array, gated: bool) -> Array:
        """Pack scales, zeros, minimums, or the units that count them."""
        if kind := self._kind(name):
            return kernels.pack_codes(
                unsigned(array, kind), array.shape[-2], "float32", gated, kind
            )
        if self.format.blocks is None:
            array = array.astype(jnp.float32)
        if name == "zero":
            array = array - MIDDLE[self.format.values]
        return kernels.pack_scales(array, gated)

    def _unpacked_shared(self, weight: WeightShape, name: str, packed: Array) -> Array:
        (inputs, outputs), gated = weight.matrix, weight.gated
        if kind := self._kind(name):
            groups = self.format.groups(inputs, name)
            return numbers(
                kernels.unpack_codes(packed, groups, outputs, "float32", gated, kind), kind
            )
        found = kernels.unpack_scales(packed, outputs, gated)
        return found + MIDDLE[self.format.values] if name == "zero" else found

    def unpack(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Invert the packing."""
        found = {"weight": self._unpacked_codes(weight, tensors["weight"])}
        for name in self.format.shared_dtypes("float32"):
            found[name] = self._unpacked_shared(weight, name, tensors[name])
        specs = self.quantized.prepared(weight, self.given.dtype)
        unpacked = {
            name: array.astype(specs[name].dtype).reshape(specs[name].shape)
            for name, array in found.items()
        }
        return {**unpacked, **static_scale(tensors)}

    def outputs_at(self, weight: WeightShape, indices: Array, tensors: Tensors) -> Tensors:
        """Unpack the panels that hold these outputs, and select one lane of each."""
        own = static_scale(tensors)
        panels = {
            name: array[indices // PANEL] for name, array in tensors.items() if name not in own
        }
        whole = self.unpack(replace(weight, outputs=(len(indices), PANEL)), panels)
        lane = (indices % PANEL)[None, :, None]
        found = {
            name: jnp.take_along_axis(array, lane, axis=-1)[..., 0] for name, array in whole.items()
        }
        return {**found, **self.quantized.outputs_at(weight, indices, own)}

    def multiply(self, weight: WeightShape, x: Array, tensors: Tensors) -> Array:
        """An unfused matmul."""
        if weight.gated:  # packed for the fused gate, but gate and up are wanted apart
            return self.quantized.multiply(weight, x, self.unpack(weight, tensors))
        return self.apply(weight, x, tensors, Around())

    def normalize(self, norm: RowNorm, x: Array) -> Array:
        """Norm in a kernel: XLA's row sums depend on the number of rows."""
        return PACKED.normalize(norm, x)

    def softmax(self, x: Array) -> Array:
        """Softmax in a kernel: XLA's row sums depend on the number of rows."""
        return PACKED.softmax(x)

    def apply(self, weight: WeightShape, x: Array, tensors: Tensors, around: Around) -> Array:
        """One fused call, unless the kernels lack the activation."""
        if around.activation not in ACTIVATIONS:
            return super().apply(weight, x, tensors, around)
        return fused(weight, x, tensors["weight"], around, scales=self._scales(weight, tensors))

    def multiply_groups(
        self,
        weight: WeightShape,
        x: Array,
        tensors: Tensors,
        sizes: Array,
        activation: str | None = None,
    ) -> Array:
        """Grouped matmul; empty groups and padding cost nothing."""
        scales = self._scales(weight, tensors)
        return grouped(weight, x, tensors["weight"], sizes, activation, scales=scales)

    def _scales(self, weight: WeightShape, tensors: Tensors) -> Scales:
        x_scale = tensors.get("input_scale")
        if x_scale is not None:  # fused modules share the largest scale, as in XLA
            x_scale = x_scale.reshape(weight.groups or 1, -1).max(1)
        return Scales(
            tensors["scale"], tensors.get("zero"), self._group(weight), self._factors, x_scale,
            codes=self._codes, least=tensors.get("least"),
            unit=self._unit,
            scale_codes=self._kind("scale"), least_codes=self._kind("least"),
            scale_unit=tensors.get("scale_unit"), least_unit=tensors.get("least_unit"),
        )  # fmt: skip

    def _kind(self, name: str) -> str | None:
        """The kernels' name of a per-group tensor's integer type; None for floats."""
        blocks = self.format.blocks
        own = None if blocks is None else blocks.integers(name)
        return None if own is None else kind_of(own)

    @property
    def _codes(self) -> str:
        """The kernels' name of the codes' type."""
        blocks = self.format.blocks
        if blocks is None:
            return self.format.values
        return "iq4" if blocks.is_table else kind_of(blocks.codes)

    @property
    def _unit(self) -> int:
        blocks = self.format.blocks
        return 0 if blocks is None or blocks.unit is None else blocks.unit

    @property
    def _declares_pairs(self) -> bool:
        return self.format.bits == 4

    @property
    def _factors(self) -> Any:
        """Dtype in which the kernels multiply."""
        return self.given.dtype if self.format.activations is None else jnp.int8

    def _group(self, weight: WeightShape) -> int:
        return self.format.group or weight.matrix[0]


def static_scale(given: Mapping[str, Any]) -> dict[str, Any]:
    """The static activation scale, if any, which is not packed."""
    return {name: one for name, one in given.items() if name == "input_scale"}


def unsigned(codes: Array, kind: str) -> Array:
    """Convert values to the kernels' codes of this type: unsigned, except int8."""
    if kind == "int8":
        return codes.astype(jnp.int8)
    if kind == "iq4":
        return jnp.searchsorted(jnp.asarray(IQ4_VALUES), codes).astype(jnp.uint8)
    return (codes.astype(jnp.int32) + zero_code(kind)).astype(jnp.uint8)


def numbers(codes: Array, kind: str) -> Array:
    """Invert `unsigned`."""
    if kind == "int8":
        return codes
    if kind == "iq4":
        return jnp.asarray(IQ4_VALUES)[codes]
    return (codes.astype(jnp.int32) - zero_code(kind)).astype(jnp.int8)


def kind_of(integers: Integers) -> str:
    return f"{'' if integers.signed else 'u'}int{integers.bits}"


def zero_code(kind: str) -> int:
    return 0 if kind.startswith("u") else 2 ** (kernels.bits_of(kind) - 1)


def kernels_take(format: WeightFormat) -> bool:
    """Whether the kernels support this format."""
    if format.values not in MIDDLE or format.activations is None:
        return format.values in MIDDLE
    return format.activations == "int8" and format.group is None and not format.zeros
