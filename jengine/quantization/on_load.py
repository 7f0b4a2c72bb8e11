"""Quantization at load: plain checkpoints, quantized while loading or updating.

Declared is the plain weight, which trainers and `update_params` supply; prepared are quantized
tensors. Weights are converted one at a time, so both never coexist in full.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from jengine.layers.initializer import Initializer
from jengine.quantization.codes import paired, rounded, scale_of
from jengine.quantization.least_error import PARTS, codes_of, least_error_steps, stored
from jengine.quantization.quantized import QuantizedWeights
from jengine.quantization.scheme import Specs, Tensors, WeightScheme, WeightShape
from jengine.quantization.unquantized import UNQUANTIZED
from jengine.weight_formats import WeightFormat


@dataclass(frozen=True)
class QuantizedOnLoad(WeightScheme):
    """Plain weights of `dtype` multiplied in this format, without static activation scales; 4-bit
    formats have fine zeros."""

    format: WeightFormat
    dtype: str

    @property
    def quantized(self) -> QuantizedWeights:
        """Scheme of the prepared tensors."""
        return QuantizedWeights(self.format, self.dtype)

    @property
    def takes_declared(self) -> bool:
        return False

    def declared(self, weight: WeightShape, dtype: Any, init: Initializer) -> Specs:
        return UNQUANTIZED.declared(weight, dtype, init)

    def prepared(self, weight: WeightShape, dtype: Any) -> Specs:
        """Values and scales."""
        return self.quantized.prepared(weight, dtype)

    def prepare(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Quantize with the least-error scales."""
        specs = self.quantized.prepared(weight, self.dtype)
        axis = 0 if weight.groups is None else 1
        groups = () if weight.groups is None else (weight.groups,)
        flat = tensors["weight"].reshape(*groups, weight.matrix[0], *weight.outputs)
        inputs, size = weight.matrix[0], self.format.group or weight.matrix[0]
        width = [(0, -inputs % size if at == axis else 0) for at in range(flat.ndim)]
        parts = jnp.pad(flat.astype(jnp.float32), width)
        parts = parts.reshape(*flat.shape[:axis], -1, size, *flat.shape[axis + 1 :])
        found = dict(self._rounded(parts, axis + 1))
        values = found["weight"].reshape(*flat.shape[:axis], -1, *flat.shape[axis + 1 :])
        values = jnp.take(values, jnp.arange(inputs), axis)
        found["weight"] = paired(values, axis) if self.format.bits == 4 else values
        return {
            name: array.reshape(specs[name].shape).astype(specs[name].dtype)
            for name, array in found.items()
        }

    def _rounded(self, parts: Array, axis: int) -> Tensors:
        """Quantize groups along an axis (kept)."""
        if self.format.bits == 4:
            steps = least_error_steps(parts, axis, self.dtype)
            return {"weight": codes_of(parts, steps), **steps._asdict()}
        scale = stored(scale_of(parts, self.format.values, axis), self.dtype)
        return {"weight": rounded(parts / scale, self.format.values), "scale": scale}

    def restore(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Dequantize: the given weight, rounded."""
        array = self.quantized.dequantized(weight, tensors)
        return {"weight": array.astype(self.dtype).reshape(weight.shape)}

    @property
    def saved(self) -> QuantizedWeights:
        """Scheme of the tensors in files of weights quantized at load."""
        return QuantizedWeights(self.format.in_files, self.dtype)

    def as_saved(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Convert to those tensors, with equal values."""
        if not self.format.fine_zeros:
            return tensors
        shape = self.saved.prepared(weight, self.dtype)["weight"].shape
        parts = self.quantized.steps(weight, tensors) * PARTS
        return {
            "weight": parts.astype(jnp.int8).reshape(shape),
            "scale": tensors["scale"].astype(jnp.float32) / PARTS,
        }

    def multiply(self, weight: WeightShape, x: Array, tensors: Tensors) -> Array:
        return self.quantized.multiply(weight, x, tensors)

    def lookup(self, weight: WeightShape, indices: Array, tensors: Tensors) -> Array:
        return self.quantized.lookup(weight, indices, tensors)

    def multiply_groups(
        self,
        weight: WeightShape,
        x: Array,
        tensors: Tensors,
        sizes: Array,
        activation: str | None = None,
    ) -> Array:
        return self.quantized.multiply_groups(weight, x, tensors, sizes, activation)
