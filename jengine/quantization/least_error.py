"""Data-free 4-bit quantization: scales and zeros with the least squared error per group.

In: groups of weights. Out: weight = (code - zero) * scale, codes 0 to 15. Zeros are multiples of
1/8, so 8 * code - 8 * zero fits 8-bit integers in files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, UInt8

HIGHEST, PARTS = 15, 8  # of codes; of a step between zeros
# Steps that a group's range is tried as, and the lowest weight's code. Of 16 steps half of one is
# cut off on each side, which brings the codes closer together for the others. Of 14: what was
# rounded once and does not take all codes is found again.
TRIED = ((15, 0.0), (16, -0.5), (14, 0.0))


class Steps(NamedTuple):
    """Scale and zero per group: weight = (code - zero) * scale."""

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
    """Nearest representable zero point."""
    return jnp.clip(jnp.round(zero * PARTS), 0, HIGHEST * PARTS) / PARTS


def stored(scale: Array, dtype: Any) -> Array:
    """Scale rounded to `dtype`, as float32; never zero."""
    made = scale.astype(dtype)
    return jnp.where(made == 0, jnp.finfo(dtype).tiny, made).astype(jnp.float32)
