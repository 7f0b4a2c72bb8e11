"""FP8 weights and activations by cuBLASLt on NVIDIA GPUs with FP8 tensor cores.

XLA emits that call only if both operands are contracted along their last dimension, and otherwise
transposes the weight in every step; so weights are prepared as [outputs, inputs].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from jengine.layers.initializer import Initializer
from jengine.quantization.repacked import Repacked
from jengine.quantization.scheme import Around, Specs, Tensors, TensorSpec, WeightShape
from jengine.quantization.unquantized import OUTPUTS
from jengine.weight_formats import WeightFormat
from sharding.placement import Placement

# Ada, the first generation with FP8 tensor cores.
OLDEST_CAPABILITY = 8.9


@dataclass(frozen=True)
class GpuFloat8(Repacked):
    """Weight scales per output; activation scales per token, or static."""

    def fits(self, weight: WeightShape) -> bool:
        """Any weight except experts, for which cuBLASLt has no call."""
        return weight.groups is None

    def prepared(self, weight: WeightShape, dtype: Any) -> Specs:
        """Values [*outputs, *inputs], and scales as declared."""
        specs = dict(self.quantized.prepared(weight, dtype))
        old, order = specs["weight"], outputs_first(weight)
        shape, axes = tuple(old.shape[at] for at in order), tuple(old.axes[at] for at in order)
        specs["weight"] = TensorSpec(shape, axes, old.dtype, Initializer())
        return specs

    def prepare(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Quantize if needed, and transpose."""
        found = dict(self.rounded(weight, tensors))
        return {**found, "weight": jnp.transpose(found["weight"], outputs_first(weight))}

    def unpack(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Transpose back."""
        count, order = len(weight.inputs) + len(weight.outputs), outputs_first(weight)
        back = tuple(order.index(at) for at in range(count))
        return {**tensors, "weight": jnp.transpose(tensors["weight"], back)}

    def multiply(self, weight: WeightShape, x: Array, tensors: Tensors) -> Array:
        """One matmul; the result is multiplied by both scales."""
        few, x_scale = self.quantized.few_bits(x, tensors)
        values = tensors["weight"].reshape(*weight.outputs, -1)
        letters = OUTPUTS[: len(weight.outputs)]
        # XLA emits an FP8 matmul if both operands are converted from FP8.
        operands = few.astype(jnp.bfloat16), values.astype(jnp.bfloat16)
        made = jnp.einsum(
            f"...i,{letters}i->...{letters}", *operands, preferred_element_type=jnp.float32
        )
        x_scale = x_scale.reshape(*x_scale.shape[:-1], *[1] * len(weight.outputs))
        return made * x_scale * jnp.broadcast_to(tensors["scale"][0], made.shape)

    def multiply_groups(
        self,
        weight: WeightShape,
        x: Array,
        tensors: Tensors,
        sizes: Array,
        activation: str | None = None,
    ) -> Array:
        """Unreachable: experts keep the declared scheme."""
        raise AssertionError("a weight of experts does not fit this scheme")

    def apply(self, weight: WeightShape, x: Array, tensors: Tensors, around: Around) -> Array:
        """Unfused; inner results are bfloat16."""
        made = super().apply(weight, x, tensors, around)
        narrow = weight.inner and self.quantized.dtype == "bfloat16"
        return made.astype(jnp.bfloat16) if narrow else made


def outputs_first(weight: WeightShape) -> tuple[int, ...]:
    """Permutation from declared (inputs first) to prepared order."""
    inputs, outputs = len(weight.inputs), len(weight.outputs)
    return (*range(inputs, inputs + outputs), *range(inputs))


def float8_takes(format: WeightFormat, placement: Placement) -> bool:
    """Whether this format runs so on these devices."""
    is_float8 = format.values == "fp8" == format.activations and format.group is None
    return is_float8 and knows_float8(placement)


def knows_float8(placement: Placement) -> bool:
    """Whether these devices have FP8 tensor cores."""
    return all(
        float(getattr(device, "compute_capability", 0)) >= OLDEST_CAPABILITY
        for device in placement.mesh.devices.flat
    )
