"""Weights in bfloat16, float16 or float32: one array each, used by steps as declared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from jengine.layers.initializer import Initializer
from jengine.layers.linear import project
from jengine.layers.mlp import gated
from jengine.layers.moe import grouped_project
from jengine.quantization.scheme import (
    Specs,
    Tensors,
    TensorSpec,
    WeightScheme,
    WeightShape,
)

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int

# Einsum letters of output dimensions; "i" is the contracted one.
OUTPUTS = "abcdefgh"


@dataclass(frozen=True)
class Unquantized(WeightScheme):
    def declared(self, weight: WeightShape, dtype: Any, init: Initializer) -> Specs:
        return {"weight": TensorSpec(weight.shape, weight.axes, dtype, init)}

    def multiply(
        self, weight: WeightShape, x: Float[Array, "*tokens inputs"], tensors: Tensors
    ) -> Float32[Array, "..."]:
        """One matmul in the weight's dtype with a float32 result."""
        return multiplied(weight, x, tensors["weight"])

    def lookup(
        self, weight: WeightShape, indices: Int[Array, "*tokens"], tensors: Tensors
    ) -> Float32[Array, "*tokens inputs"]:
        found = jnp.take(tensors["weight"], indices, axis=0, mode="clip")
        return found.astype(jnp.float32)

    def multiply_groups(
        self,
        weight: WeightShape,
        x: Float[Array, "rows inputs"],
        tensors: Tensors,
        sizes: Int[Array, " groups"],
        activation: str | None = None,
    ) -> Float32[Array, "rows ..."]:
        """One grouped matmul in the weight's dtype with a float32 result."""
        array = tensors["weight"].reshape(weight.groups, *weight.matrix)
        made = grouped_project(x, array, sizes).reshape(-1, *weight.outputs)
        return made if activation is None else gated(made, activation, axis=-1)


def multiplied(
    weight: WeightShape, x: Array, array: Array, dtype: DTypeLike = jnp.float32
) -> Array:
    """One matmul in the weight's dtype, accumulated in float32."""
    outputs = OUTPUTS[: len(weight.outputs)]
    if weight.outputs_first:
        return project(f"...i,{outputs}i->...{outputs}", x, array, dtype)
    if len(weight.inputs) > 1:
        # To contract several dimensions XLA would transpose the weight in every step.
        array = array.reshape(-1, *weight.outputs)
    return project(f"...i,i{outputs}->...{outputs}", x, array, dtype)


UNQUANTIZED = Unquantized()
