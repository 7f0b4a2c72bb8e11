"""Base of schemes for experts on several devices, which run only whole MLPs."""

from __future__ import annotations

from jax import Array

from jengine.quantization.scheme import Tensors, WeightScheme, WeightShape


class SpreadExpertsScheme(WeightScheme):
    """Expert weights that only `mix_experts` multiplies, since both matmuls of a row happen on its
    expert's device."""

    def multiply(self, weight: WeightShape, x: Array, tensors: Tensors) -> Array:
        raise AssertionError("a weight of experts multiplies groups of rows")

    def lookup(self, weight: WeightShape, indices: Array, tensors: Tensors) -> Array:
        raise AssertionError("a weight of experts is no table")

    def multiply_groups(
        self,
        weight: WeightShape,
        x: Array,
        tensors: Tensors,
        sizes: Array,
        activation: str | None = None,
    ) -> Array:
        raise AssertionError("experts that are spread run as whole MLPs, in mix_experts")
