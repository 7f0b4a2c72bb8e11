"""Bidirectional attention: every token of a prompt attends to all of it, and nothing is cached.

A step writes keys and values of its prompt tokens, which are packed in whole tiles, to temporary
blocks, one per tile, and then attends to these as to a cache. So a prompt's cost and its bits do
not depend on the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jax import Array

from jengine.config import AttentionConfig
from jengine.runner.step.batch import StepBatch
from jengine.runner.step.step_input import tile_of_token
from jengine.runner.step.views import GroupView, chunk_starts
from jengine.runner.variants.buckets import Bucket, StepShapes
from pallas_kernels.cache_write import empty_cache
from pallas_kernels.layout import cache_shape

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Int32, Shaped


def whole_view(batch: StepBatch, bucket: Bucket, shapes: StepShapes) -> GroupView:
    """View of the step's own blocks: prefill tile i is block i."""
    decodes, count = bucket.decode_rows, bucket.prefill_tokens
    tiles, tile = shapes.num_tiles(bucket), shapes.prefill_tile
    positions = batch.positions[decodes:].reshape(tiles, tile)
    firsts = jnp.arange(tiles, dtype=jnp.int32) - jnp.maximum(positions[:, 0], 0) // tile
    used = jnp.sum((positions >= 0).astype(jnp.int32), axis=1)
    ends = jnp.zeros(tiles, jnp.int32).at[firsts].add(used)[firsts]
    pages = min(tiles, -(-shapes.max_model_len // tile))
    tables = jnp.minimum(
        firsts[:, None] + jnp.arange(pages, dtype=jnp.int32)[None, :], max(tiles - 1, 0)
    )
    places = jnp.arange(-decodes, count, dtype=jnp.int32)
    return GroupView(
        slots=jnp.where(batch.positions >= 0, places, jnp.iinfo(jnp.int32).max),
        positions=batch.positions,
        tables=jnp.pad(tables, ((decodes, 0), (0, 0))),
        table_starts=jnp.zeros(decodes + tiles, jnp.int32),
        runs=batch.runs,
        chunk_starts=chunk_starts(batch, bucket, shapes),
        ends=jnp.pad(ends, (decodes, 0)),
    )


def step_blocks(
    config: AttentionConfig, bucket: Bucket, shapes: StepShapes
) -> Shaped[Array, "1 2 tiles tile width"]:
    """Empty blocks for one layer's keys and values."""
    blocks = max(shapes.num_tiles(bucket), 1)
    sizes = cache_shape(1, blocks, shapes.prefill_tile, config.num_kv_heads, config.head_dim)
    return empty_cache(sizes, jnp.dtype(shapes.uncached), shapes.attention)


class AttendedRange(NamedTuple):
    """A query's attended range, expressed for causal attention."""

    positions: Array  # i32 [D + T] of the last visible key, possibly past the prompt's end
    window: int | None
    ends: Array | None  # i32 [tiles] number of keys; None: positions never exceed it


def reach_of(
    view: GroupView, config: AttentionConfig, bucket: Bucket, shapes: StepShapes
) -> AttendedRange:
    """The range of each query: a bidirectional one is a causal one at the last key it sees."""
    if not config.bidirectional:
        return AttendedRange(view.positions, config.window, None)
    if config.window is None:
        last = last_of(view, bucket, shapes)
        return AttendedRange(jnp.where(view.positions >= 0, last, -1), None, None)
    ahead = config.window - 1
    moved = jnp.where(view.positions >= 0, view.positions + ahead, -1)
    return AttendedRange(moved, config.window + ahead, view.ends)


def last_of(view: GroupView, bucket: Bucket, shapes: StepShapes) -> Int32[Array, " tokens"]:
    """The last position of each token's prompt."""
    return view.ends[tile_of_token(bucket, shapes)] - 1
