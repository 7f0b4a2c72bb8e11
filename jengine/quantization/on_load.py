"""Quantization of unquantized checkpoints as they are loaded or updated.

Declared is the plain weight, which trainers and `update_params` supply; prepared are quantized
tensors. Weights are converted one at a time, so the whole model never exists in both forms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jengine.layers.initializer import Initializer
from jengine.quantization.codes import paired, rounded, scale_of
from jengine.quantization.quantized import QuantizedWeights
from jengine.quantization.scheme import Specs, Tensors, WeightScheme, WeightShape
from jengine.quantization.unquantized import UNQUANTIZED
from jengine.weight_formats import WeightFormat

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8


@dataclass(frozen=True)
class QuantizedOnLoad(WeightScheme):
    """Weights declared in `dtype` and quantized to `format`, without static activation scales;
    4-bit zeros are fractional."""

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
        return self.quantized.plain(weight, tensors)

    @property
    def saved(self) -> QuantizedWeights:
        """Scheme of the tensors that `save` writes."""
        return QuantizedWeights(self.format.in_files, self.dtype)

    def as_saved(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Convert prepared tensors to those of `saved`, with equal values."""
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


HIGHEST, PARTS = 15, 8  # highest code; resolution of zeros, per step
# (steps in a group's range, code of its minimum) to try. 16 steps clip half a step at each end for
# a finer grid. 14 recovers a grid of weights that were quantized before and use one code less.
TRIED = ((15, 0.0), (16, -0.5), (14, 0.0))


class Steps(NamedTuple):
    """Quantization grid per group: weight = (code - zero) * scale."""

    scale: Array
    zero: Array


def least_error_steps(groups: Float[Array, "..."], axis: int, dtype: Any) -> Steps:
    """Best scale and zero per group along an axis (kept), float32; scales are representable in
    `dtype`."""
    rows = jnp.moveaxis(groups, axis, 0)
    low, high = jnp.minimum(jnp.min(rows, 0), 0), jnp.maximum(jnp.max(rows, 0), 0)
    tried = []
    for steps, first in TRIED:
        scale = stored((high - low) / steps, dtype)
        tried.append(Steps(scale, in_parts(first - low / scale)))
    found = best_of(rows, tried)
    best = best_of(rows, [found, fitted(rows, found, dtype)])
    return Steps(*(jnp.expand_dims(one, axis) for one in best))


def codes_of(weights: Array, steps: Steps) -> UInt8[Array, "..."]:
    """Quantize to the nearest codes."""
    return jnp.clip(jnp.round(weights / steps.scale + steps.zero), 0, HIGHEST).astype(jnp.uint8)


def best_of(rows: Array, tried: list[Steps]) -> Steps:
    """Per group, the candidate with the least error."""
    stacked = Steps(*(jnp.stack(parts) for parts in zip(*tried, strict=True)))
    errors = jax.vmap(lambda steps: error(rows, steps))(stacked)
    best = jnp.argmin(errors, 0, keepdims=True)
    return Steps(*(jnp.take_along_axis(one, best, 0)[0] for one in stacked))


def fitted(rows: Array, steps: Steps, dtype: Any) -> Steps:
    """Refit scale and zero to the codes by linear regression."""

    def add(sums: tuple[Array, ...], row: Array) -> tuple[tuple[Array, ...], None]:
        code = codes_of(row, steps).astype(jnp.float32)
        new = code, row, code * code, code * row
        return tuple(old + one for old, one in zip(sums, new, strict=True)), None

    # Row by row: XLA's sums over a dimension that is not the last one are slow on CPUs.
    sums, _ = jax.lax.scan(add, (jnp.zeros_like(steps.scale),) * 4, rows)
    code, weight, square, along = (one / len(rows) for one in sums)
    slope = (along - code * weight) / jnp.maximum(square - code * code, 1e-6)
    scale = stored(jnp.where(slope > 0, slope, steps.scale), dtype)
    return Steps(scale, in_parts(code - weight / scale))


def error(rows: Array, steps: Steps) -> Array:
    """Sum of squared rounding errors per group."""

    def add(sums: Array, row: Array) -> tuple[Array, None]:
        change = (codes_of(row, steps).astype(jnp.float32) - steps.zero) * steps.scale - row
        return sums + change * change, None

    return jax.lax.scan(add, jnp.zeros_like(steps.scale), rows)[0]


def in_parts(zero: Array) -> Array:
    """Nearest representable zero point, a multiple of 1 / PARTS."""
    return jnp.clip(jnp.round(zero * PARTS), 0, HIGHEST * PARTS) / PARTS


def stored(scale: Array, dtype: Any) -> Array:
    """Scale rounded to `dtype`, as float32; never zero."""
    made = scale.astype(dtype)
    return jnp.where(made == 0, jnp.finfo(dtype).tiny, made).astype(jnp.float32)
