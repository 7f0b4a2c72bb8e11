"""Base of schemes that repack quantized weights for a backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jax import Array

from jengine.layers.initializer import Initializer
from jengine.quantization.on_load import QuantizedOnLoad
from jengine.quantization.quantized import QuantizedWeights
from jengine.quantization.scheme import Specs, Tensors, WeightScheme, WeightShape
from jengine.weight_formats import WeightFormat


@dataclass(frozen=True)
class Repacked(WeightScheme):
    """Weights quantized in the checkpoint or at load, repacked for one backend."""

    given: QuantizedWeights | QuantizedOnLoad

    @property
    def takes_declared(self) -> bool:
        return False

    @property
    def quantized(self) -> QuantizedWeights:
        """Scheme of the tensors before repacking."""
        given = self.given
        return given.quantized if isinstance(given, QuantizedOnLoad) else given

    @property
    def format(self) -> WeightFormat:
        return self.given.format

    def declared(self, weight: WeightShape, dtype: Any, init: Initializer) -> Specs:
        return self.given.declared(weight, dtype, init)

    def fits(self, weight: WeightShape) -> bool:
        """Whether this weight can be repacked."""
        raise NotImplementedError

    def unpack(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Invert the repacking."""
        raise NotImplementedError

    def outputs_at(self, weight: WeightShape, indices: Array, tensors: Tensors) -> Tensors:
        """Tensors of some outputs of a matrix, before repacking."""
        raise NotImplementedError

    def rounded(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Quantized tensors from declared ones."""
        if isinstance(self.given, QuantizedOnLoad):
            return self.given.prepare(weight, tensors)
        return tensors

    def restore(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Unpack; weights quantized at load are dequantized, and stay rounded."""
        return self.given.restore(weight, self.unpack(weight, tensors))

    def lookup(self, weight: WeightShape, indices: Array, tensors: Tensors) -> Array:
        return self.quantized.lookup(weight, indices, tensors)
