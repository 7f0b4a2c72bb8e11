"""Metadata of a step for one cache group: cache slots to write, and keys that queries attend to."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jax import Array

from jengine.runner.step.batch import StepBatch
from jengine.runner.step.step_input import tile_of_token
from jengine.runner.variants.buckets import Bucket, StepShapes

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Int32


# Number of query heads -> the counters returned by the last attention call with that many (none, or
# one array), to pass to the next layer's. This data dependency orders the layers that share them.
Counters = dict[int, list[Array]]


class GroupView(NamedTuple):
    """Slots, positions and block tables of a step in one cache group."""

    slots: Array  # i32 [D + T] cache slot of a token's keys and values
    positions: Array  # i32 [D + T]
    tables: Array  # i32 [tiles, pages]
    table_starts: Array  # i32 [tiles]
    runs: Array  # i32 [R + 1] first tiles of runs that attention joins, or empty
    chunk_starts: Array  # i32 [T] index of the first token of each prefill token's chunk
    ends: Array  # i32 [tiles] tokens of the tile's row so far, this step's included; or empty
    # i32 [D + T] number of later tokens of its image that a token attends to; None: causal.
    ahead: Array | None = None


def token_slots(
    batch: StepBatch, group: int, bucket: Bucket, shapes: StepShapes
) -> Int32[Array, " tokens"]:
    """Cache slot of each token's keys and values; out of range for padding."""
    tiles = tile_of_token(bucket, shapes)
    table = batch.tables[group][tiles]  # [D + T, pages]
    offset = batch.positions - batch.table_starts[group][tiles]
    page = jnp.clip(offset // shapes.block_size, 0, table.shape[1] - 1)
    block = jnp.take_along_axis(table, page[:, None], axis=1)[:, 0]
    slot = block * shapes.block_size + batch.positions % shapes.block_size
    return jnp.where(batch.positions >= 0, slot, jnp.iinfo(jnp.int32).max)


def group_view(batch: StepBatch, group: int, bucket: Bucket, shapes: StepShapes) -> GroupView:
    """The step's view of this cache group."""
    return GroupView(
        token_slots(batch, group, bucket, shapes),
        batch.positions,
        batch.tables[group],
        batch.table_starts[group],
        batch.runs,
        chunk_starts(batch, bucket, shapes),
        jnp.zeros(0, jnp.int32),
        batch.ahead,
    )


def chunk_starts(batch: StepBatch, bucket: Bucket, shapes: StepShapes) -> Int32[Array, " tokens"]:
    """Index of the first token of each prefill token's chunk; for padding, the number of tokens."""
    count, rows = bucket.prefill_tokens, batch.tile_rows
    if not count:
        return jnp.zeros(0, jnp.int32)
    first_tile = jnp.argmax(rows[:, None] == rows[None, :], axis=1).astype(jnp.int32)
    firsts = jnp.repeat(first_tile * shapes.prefill_tile, shapes.prefill_tile)
    return jnp.where(batch.positions[bucket.decode_rows :] >= 0, firsts, count)
