"""The scale of a group of weights at which rounding changes them least, found without any data.

In: groups of weights. Out: their scales. A scale may be negative: integers reach one further below
zero than above it, so that the largest weight of a group may take the value that is left over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array

from jengine.quantization.codes import LARGEST, rounded, scale_of

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32

# What the largest weight of a group is tried as, the usual one first. Beyond the last value it is
# cut off, which brings the values closer together for the others. Eight bits would gain nothing.
TRIED = {"int4": (LARGEST["int4"], -8.0, 7.5, -8.5)}


def least_error_scale(
    groups: Float[Array, "..."], kind: str, axis: int, dtype: Any
) -> Float32[Array, "..."]:
    """The best scale of each group along an axis, which stays. Scales are numbers of `dtype`."""
    usual = scale_of(groups, kind, axis)
    if kind not in TRIED:
        return stored(usual, dtype)
    rows = jnp.moveaxis(groups, axis, 0)
    largest = jnp.squeeze(usual, axis) * LARGEST[kind] * sign_of_extreme(rows)
    tried = stored(jnp.stack([largest / value for value in TRIED[kind]]), dtype)
    found = best_of(rows, tried, kind)
    refined = stored(fitted(rows, found, kind), dtype)
    return jnp.expand_dims(best_of(rows, jnp.stack([found, refined]), kind), axis)


def best_of(rows: Array, scales: Array, kind: str) -> Array:
    """Of several scales of each group, the one by which rounding changes it least."""
    errors = jax.vmap(lambda scale: error(rows, scale, kind))(scales)
    return jnp.take_along_axis(scales, jnp.argmin(errors, 0, keepdims=True), 0)[0]


def sign_of_extreme(rows: Array) -> Array:
    """The sign, 1 or -1, of the number of each group that is farthest from zero."""
    return jnp.where(jnp.max(rows, 0) >= -jnp.min(rows, 0), 1.0, -1.0)


def fitted(rows: Array, scale: Array, kind: str) -> Array:
    """The scale by which the values that this one gives come closest to each group."""

    def add(sums: tuple[Array, Array], row: Array) -> tuple[tuple[Array, Array], None]:
        values = rounded(row / scale, kind).astype(jnp.float32)
        return (sums[0] + values * row, sums[1] + values * values), None

    # Row by row: XLA's sums over a dimension that is not the last one are slow on CPUs.
    (along, square), _ = jax.lax.scan(add, (jnp.zeros_like(scale),) * 2, rows)
    return jnp.where(along == 0, scale, along / jnp.maximum(square, 1))


def error(rows: Array, scale: Array, kind: str) -> Array:
    """The sum of squares of what rounding by this scale changes in each group."""

    def add(sums: Array, row: Array) -> tuple[Array, None]:
        change = rounded(row / scale, kind).astype(jnp.float32) * scale - row
        return sums + change * change, None

    return jax.lax.scan(add, jnp.zeros_like(scale), rows)[0]


def stored(scale: Array, dtype: Any) -> Array:
    """The scale as checkpoints store it, in float32; never zero, by which nothing is divided."""
    made = scale.astype(dtype)
    return jnp.where(made == 0, jnp.finfo(dtype).tiny, made).astype(jnp.float32)
