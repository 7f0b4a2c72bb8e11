"""Quantized weights that a step takes in another form than `QuantizedWeights` declares."""

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
    """Weights of a checkpoint, or rounded at load. Schemes of one backend inherit it."""

    given: QuantizedWeights | QuantizedOnLoad

    @property
    def takes_declared(self) -> bool:
        """No."""
        return False

    @property
    def quantized(self) -> QuantizedWeights:
        """The scheme of the tensors before they are repacked."""
        given = self.given
        return given.quantized if isinstance(given, QuantizedOnLoad) else given

    @property
    def format(self) -> WeightFormat:
        """The numbers."""
        return self.given.format

    def declared(self, weight: WeightShape, dtype: Any, init: Initializer) -> Specs:
        """As where XLA multiplies."""
        return self.given.declared(weight, dtype, init)

    def fits(self, weight: WeightShape) -> bool:
        """Whether this weight can be repacked."""
        raise NotImplementedError

    def unpack(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """The tensors of the quantized weight out of the prepared ones."""
        raise NotImplementedError

    def rounded(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """The tensors of the quantized weight out of the declared ones."""
        if isinstance(self.given, QuantizedOnLoad):
            return self.given.prepare(weight, tensors)
        return tensors

    def restore(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Unpacked; weights that were rounded are plain again, and stay rounded."""
        return self.given.restore(weight, self.unpack(weight, tensors))

    def lookup(self, weight: WeightShape, indices: Array, tensors: Tensors) -> Array:
        """Tables are not quantized."""
        return self.quantized.lookup(weight, indices, tensors)
