"""Quantized weights multiplied by XLA on any backend: the reference of faster schemes.

Declared and prepared: `weight` holds values in a plain weight's layout (4-bit: two per byte along
the last input dimension), `scale` is [groups of inputs, *outputs].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jengine.layers.initializer import Initializer
from jengine.layers.linear import project
from jengine.layers.mlp import gated
from jengine.layers.moe import grouped_project
from jengine.quantization.codes import STORED, fp4_values, rounded, scale_of, unpaired
from jengine.quantization.scheme import (
    Axes,
    Specs,
    Tensors,
    TensorSpec,
    WeightScheme,
    WeightShape,
)
from jengine.quantization.unquantized import OUTPUTS
from jengine.weight_formats import WeightFormat

# Standard deviation of random codes, for load_format="dummy".
DEVIATION = {"int8": 40.0, "int4": 50.0, "fp8": 40.0, "fp4": 50.0}
MIDDLE = {"int4": 128.0, "fp4": 128.0}  # mean of random bytes with two 4-bit values
NO_STEP = 2.0**-24


@dataclass(frozen=True)
class QuantizedWeights(WeightScheme):
    """Quantized weights in `format`; unquantized parameters are of `dtype`."""

    format: WeightFormat
    dtype: str

    def declared(self, weight: WeightShape, dtype: Any, init: Initializer) -> Specs:
        """Values and scales, and zeros and activation scales if the format has them."""
        kind = self.format.values
        random = Initializer(MIDDLE.get(kind, 0.0), DEVIATION[kind])
        scale = Initializer(max(init.stddev, 1e-3) / (40.0 if self.format.bits == 8 else 4.0))
        specs = {"weight": TensorSpec(self._value_shape(weight), weight.axes, STORED[kind], random)}
        middle, count = Initializer(2.0 ** (self.format.bits - 1)), Initializer(1.0)
        for name, stored in self.format.shared_dtypes(self.dtype).items():
            own = middle if name == "zero" else count if stored == "int8" else scale
            specs[name] = TensorSpec(
                self._shared_shape(weight, name), self._shared_axes(weight, name),
                jnp.dtype(stored), own,
            )  # fmt: skip
        if self.format.static:
            first = 0 if weight.groups is None else 1
            shape = (*specs["scale"].shape[:first], 1, *weight.outputs)
            axes = specs["scale"].axes
            specs["input_scale"] = TensorSpec(
                shape, (*axes[:first], None, *axes[first + 1 :]), jnp.float32, Initializer(0.05)
            )
        return specs

    def multiply(self, weight: WeightShape, x: Array, tensors: Tensors) -> Array:
        """One matmul. Per-output scales multiply the result, per-group scales the dequantized
        weight."""
        letters = OUTPUTS[: len(weight.outputs)]
        equation = f"...i,i{letters}->...{letters}"
        if self._is_grouped(weight):
            array = self.dequantized(weight, tensors).astype(self.dtype)
            return project(equation, self.rounded_inputs(weight, x, tensors), array)
        values, scale = self._values(weight, tensors), tensors["scale"][0]
        if self.format.activations is None:
            made = project(equation, x, values.astype(self.dtype))
            return made * jnp.broadcast_to(scale, made.shape)
        few, x_scale = self.few_bits(x, tensors)
        if self.format.activations == "int8" and values.dtype == jnp.int8:
            made = jnp.einsum(equation, few, values, preferred_element_type=jnp.int32)
        else:  # both are exact in bfloat16
            wide = jnp.bfloat16
            made = project(equation, few.astype(wide), values.astype(wide))
        x_scale = x_scale.reshape(*x_scale.shape[:-1], *[1] * len(weight.outputs))
        return made.astype(jnp.float32) * x_scale * jnp.broadcast_to(scale, made.shape)

    def lookup(self, weight: WeightShape, indices: Array, tensors: Tensors) -> Array:
        raise AssertionError("an embedding is declared with the plain scheme")

    def outputs_at(self, weight: WeightShape, indices: Array, tensors: Tensors) -> Tensors:
        """Declared tensors of some outputs of a matrix."""
        return {name: jnp.take(array, indices, axis=-1) for name, array in tensors.items()}

    def multiply_groups(
        self,
        weight: WeightShape,
        x: Array,
        tensors: Tensors,
        sizes: Array,
        activation: str | None = None,
    ) -> Array:
        """One grouped matmul with dequantized weights."""
        array = self.dequantized(weight, tensors).astype(self.dtype)
        array = array.reshape(weight.groups, *weight.matrix)
        rows = jnp.repeat(jnp.arange(len(sizes)), sizes, total_repeat_length=len(x))
        x = self.rounded_inputs(weight, x, tensors, rows)
        made = grouped_project(x, array, sizes).reshape(-1, *weight.outputs)
        return made if activation is None else gated(made, activation, axis=-1)

    def dequantized(self, weight: WeightShape, tensors: Tensors) -> Array:
        """Dequantize to float32 [inputs, *outputs], with a leading group dimension if any."""
        if self.format.blocks is None:
            return self.steps(weight, tensors) * self._spread(weight, tensors["scale"])
        values = self._values(weight, tensors).astype(jnp.float32)
        values = values * self._spread(weight, self._counted(weight, tensors, "scale"))
        if not self.format.blocks.least:
            return values
        return values - self._spread(weight, self._counted(weight, tensors, "least"))

    def flat(self, weight: WeightShape, tensors: Tensors) -> dict[str, Array]:
        """Tensors of `format.flat`: float32 scales, and minimums as zeros."""
        blocks = self.format.blocks
        if blocks is None:
            return dict(tensors)
        scale = self._counted(weight, tensors, "scale")
        found = {"weight": tensors["weight"], "scale": scale}
        if blocks.least:
            least = self._counted(weight, tensors, "least")
            # With scale 0 every value is the minimum: a zero this large makes codes vanish in
            # float32.
            far = jnp.where(scale == 0, least * NO_STEP, scale)
            steps = jnp.where(far == 0, 0.0, least / jnp.where(far == 0, 1.0, far))
            zero = 128.0 if self.format.bits == 8 else 8.0 * blocks.codes.signed
            found |= {"scale": far, "zero": steps + zero}
        return found

    def _counted(self, weight: WeightShape, tensors: Tensors, name: str) -> Array:
        """float32 scales or minimums per group: counts times the unit, if any."""
        found = tensors[name].astype(jnp.float32)
        unit, axis = tensors.get(f"{name}_unit"), 0 if weight.groups is None else 1
        if unit is None:
            return found
        many = (self.format.shared_by(f"{name}_unit") or 1) // (self.format.group or 1)
        wide = jnp.repeat(unit.astype(jnp.float32), many, axis)
        return found * jax.lax.slice_in_dim(wide, 0, found.shape[axis], axis=axis)

    def plain(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """The plain weight, dequantized to the model's dtype."""
        array = self.dequantized(weight, tensors)
        return {"weight": array.astype(self.dtype).reshape(weight.shape)}

    def steps(self, weight: WeightShape, tensors: Tensors) -> Array:
        """`dequantized` before scaling: values minus zeros."""
        values = self._values(weight, tensors).astype(jnp.float32)
        return values - self._spread(weight, tensors["zero"]) if self.format.zeros else values

    def _spread(self, weight: WeightShape, one: Array) -> Array:
        """Expand a per-group number to all inputs."""
        axis, inputs = 0 if weight.groups is None else 1, weight.matrix[0]
        if one.shape[axis] == 1:
            return one.astype(jnp.float32)
        wide = jnp.repeat(one.astype(jnp.float32), self.format.group or inputs, axis)
        return jax.lax.slice_in_dim(wide, 0, inputs, axis=axis)

    def _values(self, weight: WeightShape, tensors: Tensors) -> Array:
        """Values [inputs, *outputs], without offset unless zeros are stored."""
        axis, kind = (0 if weight.groups is None else 1), self.format.values
        shape = (*tensors["weight"].shape[:axis], -1, *weight.outputs)
        flat = tensors["weight"].reshape(shape)
        if self.format.bits == 8:
            return flat.astype(jnp.int32) + 128 if self.format.zeros else flat
        codes = unpaired(flat, axis)
        if kind == "fp4":
            return fp4_values(codes)
        blocks = self.format.blocks
        unsigned = self.format.zeros or (blocks is not None and not blocks.codes.signed)
        return codes if unsigned else codes.astype(jnp.int8) - jnp.int8(8)

    def _is_grouped(self, weight: WeightShape) -> bool:
        format = self.format
        return format.zeros or format.blocks is not None or format.groups(weight.matrix[0]) > 1

    def few_bits(self, x: Array, tensors: Tensors) -> tuple[Array, Array]:
        """Quantize activations; returns values and scales [*tokens, 1]."""
        kind = self.format.activations
        assert kind is not None
        x = x.astype(jnp.float32)
        if self.format.static:
            # Fused modules share the largest scale, which clips none of them.
            scale = jnp.broadcast_to(jnp.max(tensors["input_scale"]), (*x.shape[:-1], 1))
        else:
            scale = scale_of(x, kind, -1)
        return rounded(x / scale, kind), scale

    def rounded_inputs(
        self, weight: WeightShape, x: Array, tensors: Tensors, rows: Array | None = None
    ) -> Array:
        """Fake-quantize activations: round to few bits and back. `rows` holds each row's group."""
        kind, size = self.format.activations, self.format.group
        if kind is None:
            return x
        x = x.astype(jnp.float32)
        if self.format.static:
            scales = tensors["input_scale"]
            highest = jnp.max(scales, axis=tuple(range(0 if rows is None else 1, scales.ndim)))
            scale = highest if rows is None else highest[rows][:, None]
            return rounded(x / scale, kind).astype(jnp.float32) * scale
        inputs = x.shape[-1]
        if size is None or not self.format.activation_groups:
            scale = scale_of(x, kind, -1)
            return rounded(x / scale, kind).astype(jnp.float32) * scale
        padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -inputs % size)])
        parts = padded.reshape(*x.shape[:-1], -1, size)
        scale = scale_of(parts, kind, -1)
        made = rounded(parts / scale, kind).astype(jnp.float32) * scale
        return made.reshape(padded.shape)[..., :inputs]

    def _value_shape(self, weight: WeightShape) -> tuple[int, ...]:
        assert not weight.outputs_first, "tables are not quantized"
        if self.format.bits == 8:
            return weight.shape
        last = len(weight.shape) - len(weight.outputs) - 1
        if weight.shape[last] % 2:
            raise ValueError(f"{self.format.values}: {weight.shape[last]} inputs are no pairs")
        return (*weight.shape[:last], weight.shape[last] // 2, *weight.shape[last + 1 :])

    def _shared_shape(self, weight: WeightShape, name: str) -> tuple[int, ...]:
        groups = () if weight.groups is None else (weight.groups,)
        return (*groups, self.format.groups(weight.matrix[0], name), *weight.outputs)

    def _shared_axes(self, weight: WeightShape, name: str) -> Axes:
        """Axes of per-group tensors: outputs, and inputs if these are a single dimension."""
        first = 0 if weight.groups is None else 1
        inputs = weight.axes[first : len(weight.axes) - len(weight.outputs)]
        grouped = len(inputs) == 1 and self.format.groups(weight.matrix[0], name) > 1
        own = inputs[0] if grouped else None
        return (*weight.axes[:first], own, *weight.axes[len(weight.axes) - len(weight.outputs) :])
