"""Batch: positions and block tables of a step's tokens, for attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jengine.config import CacheGroup
from jengine.runner.step.draft_input import RunDrafts, with_draft_positions
from jengine.runner.step.state import StepState
from jengine.runner.step.step_input import StepInput, TileInput
from jengine.runner.variants.buckets import Bucket, StepShapes

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Int32


class StepBatch(NamedTuple):
    """D decode rows and T prefill tokens. Query tiles: the decode rows, then the prefill tiles."""

    positions: Array  # i32[D + T]; -1 for padding
    tables: tuple[Array, ...]  # per group: i32[tiles, pages] block ids
    table_starts: tuple[Array, ...]  # per group: i32[tiles] position of the table's first token
    runs: Array  # i32[R + 1] see TileInput
    tile_rows: Array  # i32[prefill tiles] engine row; a row has one chunk, of adjacent tiles
    # i32[D + T] number of later tokens of its image that a token attends to; None: causal.
    ahead: Array | None = None
    # i32[D] see DraftInput; None: the program runs no drafts.
    offsets: Array | None = None


def row_lengths(inputs: StepInput, state: StepState) -> Int32[Array, " decodes"]:
    """Cached tokens of each decode row's request, -1 for padding."""
    return state.lengths.at[inputs.tokens.decode_rows].get(mode="fill", fill_value=-1)


def row_drafts(inputs: StepInput, state: StepState) -> Int32[Array, "decodes drafts"] | None:
    """Draft tokens of each decode row from the last step; None without a drafter on the device."""
    if state.next_drafts is None:
        return None
    return state.next_drafts.at[inputs.tokens.decode_rows].get(mode="fill", fill_value=-1)


def batch_of(
    inputs: StepInput,
    state: StepState,
    bucket: Bucket,
    shapes: StepShapes,
    drafts: RunDrafts | None = None,
) -> StepBatch:
    """The batch of a step; lengths and block tables of its rows are in the state."""
    assert state.tables is not None, "in a pipeline tables are packed: see stage_batch"
    with jax.named_scope("batch"):
        lengths = row_lengths(inputs, state)
        if drafts is not None:
            lengths = with_draft_positions(lengths, drafts)
        # No row is scheduled past the longest context; the clip keeps reads inside the tables.
        lengths = jnp.minimum(lengths, shapes.max_model_len - 1)
        starts = inputs.tiles.decode_starts
        decodes = jnp.where(starts >= 0, starts, lengths)
        offsets = None if drafts is None else drafts.offsets
        return batch_at(decodes, inputs, state.tables, bucket, shapes)._replace(offsets=offsets)


def batch_at(
    decodes: Int32[Array, " decodes"],
    inputs: StepInput,
    known: Int32[Array, "groups rows max_pages"],
    bucket: Bucket,
    shapes: StepShapes,
) -> StepBatch:
    """The batch of a step whose decode rows run at these positions; `known`: all rows' block
    tables, on the device."""
    tiles = inputs.tiles
    rows = jnp.concatenate([inputs.tokens.decode_rows, tiles.rows])
    begins = jnp.concatenate([decodes, tiles.starts])
    firsts = tuple(first_pages(group, begins, shapes) for group in shapes.groups)
    tables = tuple(
        tables_of(known, index, shapes, bucket, rows, first) for index, first in enumerate(firsts)
    )
    starts = tuple(first * shapes.block_size for first in firsts)
    positions = token_positions(decodes, tiles, shapes)
    return StepBatch(positions, tables, starts, tiles.runs, tiles.rows)


def stage_batch(inputs: StepInput, shapes: StepShapes) -> StepBatch:
    """The batch of one pipeline stage, from packed positions and tables."""
    tiles = inputs.tiles
    begins = jnp.concatenate([tiles.decode_starts, tiles.starts])
    starts = tuple(
        first_pages(group, begins, shapes) * shapes.block_size for group in shapes.groups
    )
    positions = token_positions(tiles.decode_starts, tiles, shapes)
    return StepBatch(positions, inputs.blocks.tables, starts, tiles.runs, tiles.rows)


def token_positions(
    decodes: Int32[Array, " decodes"], tiles: TileInput, shapes: StepShapes
) -> Int32[Array, " tokens"]:
    """The decodes' positions, and those of the prefill tiles' tokens."""
    offsets = jnp.arange(shapes.prefill_tile, dtype=jnp.int32)[None, :]
    runs = offsets < tiles.lengths[:, None]  # [P, tile]
    prefills = jnp.where(runs, tiles.starts[:, None] + offsets, -1)
    return jnp.concatenate([decodes, prefills.reshape(-1)])


def first_pages(
    group: CacheGroup, begins: Int32[Array, " tiles"], shapes: StepShapes
) -> Int32[Array, " tiles"]:
    """The first page that each tile reads, given its first token's position."""
    return group.spec.first_read(begins) // shapes.block_size


def tables_of(
    tables: Int32[Array, "groups rows max_pages"],
    index: int,
    shapes: StepShapes,
    bucket: Bucket,
    rows: Int32[Array, " tiles"],
    first_page: Int32[Array, " tiles"],
) -> Int32[Array, "tiles pages"]:
    """Block tables per tile in one group; the null block for out-of-range rows and pages."""
    group = shapes.groups[index]
    pages = shapes.group_pages(bucket, group)
    if group.spec.window is None:
        return tables.at[index, rows, :pages].get(mode="fill", fill_value=0)
    columns = first_page[:, None] + jnp.arange(pages, dtype=jnp.int32)[None, :]
    return tables.at[index, rows[:, None], columns].get(mode="fill", fill_value=0)


def with_new_blocks(
    tables: Int32[Array, "groups rows max_pages"], entries: Int32[Array, "blocks 4"]
) -> Int32[Array, "groups rows max_pages"]:
    """Scatter (group, row, index, block) entries into the tables; out-of-range entries are
    dropped."""
    with jax.named_scope("block_tables"):
        group, row, index, block = entries.T
        return tables.at[group, row, index].set(block, mode="drop")
