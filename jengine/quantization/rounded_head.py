"""Output head in int8 with a scale per vocabulary entry, quantized at load; also the embedding
table if tied.

In decode steps of small models the head is a large part of the bytes read. Declared is the plain
weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from jengine.layers.initializer import Initializer
from jengine.layers.linear import project
from jengine.quantization.codes import rounded, scale_of
from jengine.quantization.cpu import PACKED, fused
from jengine.quantization.scheme import (
    Around,
    Specs,
    Tensors,
    TensorSpec,
    WeightScheme,
    WeightShape,
)
from jengine.quantization.unquantized import UNQUANTIZED
from pallas_kernels.cpu import codes as kernels
from pallas_kernels.cpu.matmul import ACTIVATIONS, PANEL, Scales, columns, depth


@dataclass(frozen=True)
class RoundedHead(WeightScheme):
    """Multiplied by XLA in `dtype`; the single output dimension is the vocabulary."""

    dtype: str

    @property
    def takes_declared(self) -> bool:
        return False

    def declared(self, weight: WeightShape, dtype: Any, init: Initializer) -> Specs:
        return UNQUANTIZED.declared(weight, dtype, init)

    def prepared(self, weight: WeightShape, dtype: Any) -> Specs:
        """int8 values in the plain weight's layout, and a scale per token."""
        axis = weight.axes[0 if weight.outputs_first else -1]
        return {
            "weight": TensorSpec(weight.shape, weight.axes, jnp.int8, Initializer()),
            "scale": TensorSpec(weight.outputs, (axis,), jnp.float32, Initializer()),
        }

    def prepare(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Quantize."""
        axis = inputs_axis(weight)
        plain = tensors["weight"].astype(jnp.float32)
        scale = scale_of(plain, "int8", axis).astype(self.dtype).astype(jnp.float32)
        return {"weight": rounded(plain / scale, "int8"), "scale": jnp.squeeze(scale, axis)}

    def restore(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Dequantize: the given weight, rounded."""
        scale = jnp.expand_dims(tensors["scale"], inputs_axis(weight))
        return {"weight": (tensors["weight"].astype(jnp.float32) * scale).astype(self.dtype)}

    def multiply(self, weight: WeightShape, x: Array, tensors: Tensors) -> Array:
        """One matmul, with the result scaled."""
        equation = "...i,ai->...a" if weight.outputs_first else "...i,ia->...a"
        made = project(equation, x, tensors["weight"].astype(self.dtype))
        return made * jnp.broadcast_to(tensors["scale"], made.shape)

    def lookup(self, weight: WeightShape, indices: Array, tensors: Tensors) -> Array:
        found = jnp.take(tensors["weight"], indices, axis=0, mode="clip").astype(jnp.float32)
        return found * jnp.take(tensors["scale"], indices, mode="clip")[..., None]

    def multiply_groups(
        self,
        weight: WeightShape,
        x: Array,
        tensors: Tensors,
        sizes: Array,
        activation: str | None = None,
    ) -> Array:
        raise AssertionError("a head has no groups")


@dataclass(frozen=True)
class CpuRoundedHead(RoundedHead):
    """Packed for the CPU kernels, which dequantize in registers."""

    def prepared(self, weight: WeightShape, dtype: Any) -> Specs:
        """Packed codes and scales."""
        shape = kernels.packed_codes_shape(*weight.matrix, 8, self.dtype)
        return {
            "weight": TensorSpec(shape, (None,) * 3, jnp.int8, Initializer()),
            "scale": TensorSpec((shape[0], 1, PANEL), (None,) * 3, jnp.float32, Initializer()),
        }

    def prepare(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Quantize and pack."""
        found = super().prepare(weight, tensors)
        values = found["weight"].T if weight.outputs_first else found["weight"]
        return {
            "weight": kernels.pack_codes(values, weight.matrix[0], self.dtype),
            "scale": kernels.pack_scales(found["scale"][None]),
        }

    def restore(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Unpack and dequantize."""
        values = kernels.unpack_codes(tensors["weight"], *weight.matrix, self.dtype)
        scale = kernels.unpack_scales(tensors["scale"], weight.matrix[1])[0]
        values = values.T if weight.outputs_first else values
        return super().restore(weight, {"weight": values, "scale": scale})

    def multiply(self, weight: WeightShape, x: Array, tensors: Tensors) -> Array:
        """An unfused matmul."""
        return self.apply(weight, x, tensors, Around())

    def lookup(self, weight: WeightShape, indices: Array, tensors: Tensors) -> Array:
        """Rows of the table, which are panel columns."""
        codes = tensors["weight"]
        panels = codes.reshape(*codes.shape[:2], PANEL, depth(self.dtype))
        scales = tensors["scale"].reshape(-1)
        indices = jnp.clip(indices, 0, weight.outputs[0] - 1)
        return columns(panels, weight.matrix[0], indices) * scales[indices][..., None]

    def normalize(self, norm: Any, x: Array) -> Array:
        """Norm in a kernel: XLA's row sums depend on the number of rows."""
        return PACKED.normalize(norm, x)

    def apply(self, weight: WeightShape, x: Array, tensors: Tensors, around: Around) -> Array:
        """One fused call."""
        if around.activation not in ACTIVATIONS:
            return super().apply(weight, x, tensors, around)
        scales = Scales(tensors["scale"], None, weight.matrix[0], self.dtype)
        return fused(weight, x, tensors["weight"], around, scales=scales)


def inputs_axis(weight: WeightShape) -> int:
    """Input dimension of the plain weight."""
    return 1 if weight.outputs_first else 0
