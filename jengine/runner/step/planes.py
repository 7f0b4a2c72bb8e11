"""Rotary positions by frame, row and column (M-RoPE) of image tokens, and offsets after images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax import Array

from jengine.runner.step.step_input import StepInput
from jengine.runner.variants.buckets import Bucket, StepShapes

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Int32


def row_of_token(inputs: StepInput, bucket: Bucket, shapes: StepShapes) -> Int32[Array, " tokens"]:
    """Row of each token; out of range for padding."""
    tiles = jnp.repeat(inputs.tiles.rows, shapes.prefill_tile)
    return jnp.concatenate([inputs.tokens.decode_rows, tiles])


def rotary_planes(
    positions: Int32[Array, " tokens"],
    rows: Int32[Array, " tokens"],
    offsets: Int32[Array, " rows"] | None,
    given: Int32[Array, "3 tokens"] | None,
) -> Int32[Array, "3 tokens"] | None:
    """Frame, row and column positions of each token; None where all equal `positions`. `offsets`:
    added to positions of tokens behind a row's images; `given`: those of image tokens, -1 for
    others."""
    if offsets is None:
        return None
    shifted = positions + offsets.at[rows].get(mode="fill", fill_value=0)
    planes = jnp.broadcast_to(shifted, (3, *shifted.shape))
    return planes if given is None else jnp.where(given >= 0, given, planes)
