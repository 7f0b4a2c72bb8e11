"""int8 and int4 weights in CPU kernels.

Prepared: packed codes, and float32 scales and zeros in panel order. Codes are dequantized in
registers, and sums per input group scaled, so weights are never rounded to the model's dtype. Where
the format rounds activations to int8 as well, the kernel does it, and multiplies codes by codes:
integer sums are exact, and results have the bits of XLA's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax import Array

from jengine.layers.initializer import Initializer
from jengine.layers.norm import RowNorm
from jengine.quantization.cpu import PACKED, fused, grouped, groups_of
from jengine.quantization.repacked import Repacked
from jengine.quantization.scheme import (
    Around,
    Specs,
    Tensors,
    TensorSpec,
    WeightShape,
)
from jengine.weight_formats import WeightFormat
from pallas_kernels.cpu import codes as kernels
from pallas_kernels.cpu.matmul import ACTIVATIONS, PANEL, Scales

MIDDLE = {"int8": 128, "int4": 8}  # what zeros are stored larger by


@dataclass(frozen=True)
class CpuCodes(Repacked):
    """Packed in the kernels' panels."""

    def fits(self, weight: WeightShape) -> bool:
        """Whether the kernels support this group size."""
        return kernels.scales_fit(self._group(weight), weight.matrix[0], self._factors)

    def prepared(self, weight: WeightShape, dtype: Any) -> Specs:
        """Packed codes and scales."""
        own, (inputs, outputs) = self._factors, weight.matrix
        codes = kernels.packed_codes_shape(inputs, outputs, self.format.bits, own, weight.gated)
        scales = codes[0], self.format.groups(inputs), PANEL
        kind = jnp.int8 if self.format.bits == 8 else jnp.uint8
        shapes = {"weight": (codes, kind), "scale": (scales, jnp.float32)}
        if self.format.zeros:
            shapes["zero"] = shapes["scale"]
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
        found = {
            "weight": kernels.pack_codes(
                flat["weight"], weight.matrix[0], self._factors, weight.gated
            ),
            "scale": kernels.pack_scales(flat["scale"], weight.gated),
        }
        if self.format.zeros:
            zeros = flat["zero"].astype(jnp.float32) - MIDDLE[self.format.values]
            found["zero"] = kernels.pack_scales(zeros, weight.gated)
        return {**found, **static_scale(tensors)}

    def unpack(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Invert the packing."""
        (inputs, outputs), gated = weight.matrix, weight.gated
        found = {
            "weight": kernels.unpack_codes(
                tensors["weight"], inputs, outputs, self._factors, gated
            ),
            "scale": kernels.unpack_scales(tensors["scale"], outputs, gated),
        }
        if self.format.zeros:
            zeros = kernels.unpack_scales(tensors["zero"], outputs, gated)
            found["zero"] = zeros + MIDDLE[self.format.values]
        specs = self.quantized.prepared(weight, self.given.dtype)
        unpacked = {
            name: array.astype(specs[name].dtype).reshape(specs[name].shape)
            for name, array in found.items()
        }
        return {**unpacked, **static_scale(tensors)}

    def outputs_at(self, weight: WeightShape, indices: Array, tensors: Tensors) -> Tensors:
        """The columns of whole panels, of which one each is kept."""
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
        if weight.gated:  # packed for a fused gate only, so both halves are wanted as they are
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
        if x_scale is not None:  # the largest of a weight, as in XLA
            x_scale = x_scale.reshape(weight.groups or 1, -1).max(1)
        return Scales(
            tensors["scale"], tensors.get("zero"), self._group(weight), self._factors, x_scale
        )

    @property
    def _factors(self) -> Any:
        """The dtype of what is multiplied."""
        return self.given.dtype if self.format.activations is None else jnp.int8

    def _group(self, weight: WeightShape) -> int:
        return self.format.group or weight.matrix[0]


def static_scale(given: Mapping[str, Any]) -> dict[str, Any]:
    """The stored scale of activations if there is one: it stays as declared."""
    return {name: one for name, one in given.items() if name == "input_scale"}


def kernels_take(format: WeightFormat) -> bool:
    """Whether the kernels support this format."""
    if format.values not in MIDDLE or format.activations is None:
        return format.values in MIDDLE
    return format.activations == "int8" and format.group is None and not format.zeros
