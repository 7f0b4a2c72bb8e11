"""Base of expert-parallel schemes, which only run whole MLPs."""

from __future__ import annotations

from jax import Array

from jengine.quantization.scheme import Tensors, WeightScheme, WeightShape


class SpreadExpertsScheme(WeightScheme):
    """Expert weights without a matmul of their own: `mix_experts` runs both matmuls of a row on its
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
