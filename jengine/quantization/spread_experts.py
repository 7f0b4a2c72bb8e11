"""What schemes of experts on several devices have in common: whole MLPs run, nothing else."""

from __future__ import annotations

from jax import Array

from jengine.quantization.scheme import Tensors, WeightScheme, WeightShape


class SpreadExpertsScheme(WeightScheme):
    """Weights of experts that only `mix_experts` multiplies: what a row meets next is on its
    expert's device."""

    def multiply(self, weight: WeightShape, x: Array, tensors: Tensors) -> Array:
        """Not for experts."""
        raise AssertionError("a weight of experts multiplies groups of rows")

    def lookup(self, weight: WeightShape, indices: Array, tensors: Tensors) -> Array:
        """Not for experts."""
        raise AssertionError("a weight of experts is no table")

    def multiply_groups(
        self,
        weight: WeightShape,
        x: Array,
        tensors: Tensors,
        sizes: Array,
        activation: str | None = None,
    ) -> Array:
        """Not for experts that are on several devices."""
        raise AssertionError("experts that are spread run as whole MLPs, in mix_experts")
