"""A tied embedding and output head, quantized in the checkpoint by input groups.

Declared is the table as stored, rows first. Prepared is the transposed matrix in a backend's
scheme, `matrix`, which multiplies; looked up rows are dequantized from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax import Array

from jengine.layers.initializer import Initializer
from jengine.layers.norm import RowNorm
from jengine.quantization.quantized import QuantizedWeights
from jengine.quantization.repacked import Repacked
from jengine.quantization.scheme import (
    Around,
    Specs,
    Tensors,
    TensorSpec,
    WeightScheme,
    WeightShape,
)


@dataclass(frozen=True)
class QuantizedTable(WeightScheme):
    """`matrix` is the scheme of the transposed table [inputs, rows]."""

    matrix: QuantizedWeights | Repacked

    @property
    def takes_declared(self) -> bool:
        return False

    @property
    def quantized(self) -> QuantizedWeights:
        """Scheme of the matrix before repacking."""
        return self.matrix if isinstance(self.matrix, QuantizedWeights) else self.matrix.quantized

    def declared(self, weight: WeightShape, dtype: Any, init: Initializer) -> Specs:
        """The matrix's tensors, transposed."""
        specs = self.quantized.declared(transposed(weight), dtype, init)
        return {
            name: TensorSpec(spec.shape[::-1], spec.axes[::-1], spec.dtype, spec.init)
            for name, spec in specs.items()
        }

    def prepared(self, weight: WeightShape, dtype: Any) -> Specs:
        return self.matrix.prepared(transposed(weight), dtype)

    def prepare(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        return self.matrix.prepare(transposed(weight), flipped(tensors))

    def unpack(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        return flipped(self.matrix.unpack(transposed(weight), tensors))

    def restore(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        return self.unpack(weight, tensors)

    def multiply(self, weight: WeightShape, x: Array, tensors: Tensors) -> Array:
        return self.matrix.multiply(transposed(weight), x, tensors)

    def lookup(self, weight: WeightShape, indices: Array, tensors: Tensors) -> Array:
        """Dequantized rows."""
        matrix = transposed(weight)
        flat = jnp.clip(indices.reshape(-1), 0, weight.outputs[0] - 1)
        found = self.matrix.outputs_at(matrix, flat, tensors)
        rows = self.quantized.dequantized(replace(matrix, outputs=flat.shape), found).T
        return rows.reshape(*indices.shape, -1)

    def normalize(self, norm: RowNorm, x: Array) -> Array:
        return self.matrix.normalize(norm, x)

    def apply(self, weight: WeightShape, x: Array, tensors: Tensors, around: Around) -> Array:
        return self.matrix.apply(transposed(weight), x, tensors, around)

    def plain(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """The plain table, dequantized from declared tensors."""
        made = self.quantized.plain(transposed(weight), flipped(tensors))
        return flipped(made)

    def multiply_groups(
        self,
        weight: WeightShape,
        x: Array,
        tensors: Tensors,
        sizes: Array,
        activation: str | None = None,
    ) -> Array:
        raise AssertionError("a table has no groups")


def transposed(weight: WeightShape) -> WeightShape:
    """The matrix [inputs, rows] of a table."""
    assert weight.outputs_first and len(weight.axes) == 2, "a table"
    return replace(weight, outputs_first=False, axes=weight.axes[::-1])


def flipped(tensors: Tensors) -> Tensors:
    return {name: array.T for name, array in tensors.items()}
