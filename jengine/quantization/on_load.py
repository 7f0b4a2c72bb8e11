"""Plain checkpoints that a step multiplies as quantized: rounded as they are loaded or updated.

Declared is the plain weight, so trainers and `update_params` give what they have. Prepared are the
tensors of a quantized one. Weights are prepared one by one, so both are never in memory as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from jengine.layers.initializer import Initializer
from jengine.quantization.codes import paired, rounded
from jengine.quantization.least_error import least_error_scale
from jengine.quantization.quantized import QuantizedWeights
from jengine.quantization.scheme import Specs, Tensors, WeightScheme, WeightShape
from jengine.quantization.unquantized import UNQUANTIZED
from jengine.weight_formats import WeightFormat


@dataclass(frozen=True)
class QuantizedOnLoad(WeightScheme):
    """Weights of `dtype`, multiplied as this format, which has no zeros and no stored scales of
    activations."""

    format: WeightFormat
    dtype: str

    @property
    def quantized(self) -> QuantizedWeights:
        """The scheme of the prepared tensors."""
        return QuantizedWeights(self.format, self.dtype)

    @property
    def takes_declared(self) -> bool:
        """No."""
        return False

    def declared(self, weight: WeightShape, dtype: Any, init: Initializer) -> Specs:
        """The plain weight."""
        return UNQUANTIZED.declared(weight, dtype, init)

    def prepared(self, weight: WeightShape, dtype: Any) -> Specs:
        """Values and scales."""
        return self.quantized.prepared(weight, dtype)

    def prepare(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """The nearest values, at the scales that change the weight least."""
        specs = self.quantized.prepared(weight, self.dtype)
        axis = 0 if weight.groups is None else 1
        groups = () if weight.groups is None else (weight.groups,)
        flat = tensors["weight"].reshape(*groups, weight.matrix[0], *weight.outputs)
        inputs, size = weight.matrix[0], self.format.group or weight.matrix[0]
        width = [(0, -inputs % size if at == axis else 0) for at in range(flat.ndim)]
        parts = jnp.pad(flat.astype(jnp.float32), width)
        parts = parts.reshape(*flat.shape[:axis], -1, size, *flat.shape[axis + 1 :])
        scale = least_error_scale(parts, self.format.values, axis + 1, self.dtype)
        values = rounded(parts / scale, self.format.values)
        values = values.reshape(*flat.shape[:axis], -1, *flat.shape[axis + 1 :])
        values = jnp.take(values, jnp.arange(inputs), axis)
        if self.format.bits == 4:
            values = paired((values + jnp.int8(8)).astype(jnp.uint8), axis)
        return {
            "weight": values.reshape(specs["weight"].shape),
            "scale": scale.reshape(specs["scale"].shape),
        }

    def restore(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """The plain weight that the values stand for: what was given, rounded."""
        array = self.quantized.dequantized(weight, tensors)
        return {"weight": array.astype(self.dtype).reshape(weight.shape)}

    def multiply(self, weight: WeightShape, x: Array, tensors: Tensors) -> Array:
        """As quantized."""
        return self.quantized.multiply(weight, x, tensors)

    def lookup(self, weight: WeightShape, indices: Array, tensors: Tensors) -> Array:
        """Tables are not quantized."""
        return self.quantized.lookup(weight, indices, tensors)

    def multiply_groups(
        self,
        weight: WeightShape,
        x: Array,
        tensors: Tensors,
        sizes: Array,
        activation: str | None = None,
    ) -> Array:
        """As quantized."""
        return self.quantized.multiply_groups(weight, x, tensors, sizes, activation)
