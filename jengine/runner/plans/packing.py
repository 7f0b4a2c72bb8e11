"""Fills a StepInput from a plan and the mirror of rows. Pure numpy, vectorised over decode rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jengine.runner.plans.plan_arrays import PlanArrays
from jengine.runner.plans.rows import Rows
from jengine.runner.step.step_input import StepInput
from jengine.runner.variants.buckets import Bucket, Ladders, StepShapes
from jengine.sampling.inputs import fill_sampling

NO_BLOCKS = np.zeros((0, 4), np.int32)


class PackedStep(NamedTuple):
    """A plan as the device takes it, and the places of its results."""

    buffer: np.ndarray
    bucket: Bucket
    slots: np.ndarray  # sampling slot of each plan entry that wants tokens, in plan order
    chunk_offsets: dict[int, int]  # plan entry -> its first token among the prompt tokens
    chunk_base: int  # where prompt tokens begin among all tokens of the step

    def first_token(self, entry: int) -> int:
        """Where an entry's tokens begin among all tokens of the step."""
        chunk = self.chunk_offsets.get(entry)
        return entry if chunk is None else self.chunk_base + chunk


def bucket_for(plan: PlanArrays, shapes: StepShapes, ladders: Ladders) -> Bucket:
    """The smallest bucket that holds the plan."""
    if shapes.one_segment:
        return ladders.smallest_for(int(plan.lengths.sum()), 0, ladders.pages[-1])
    tile = shapes.prefill_tile
    prefill = int((-(-plan.lengths[plan.num_decodes :] // tile)).sum()) * tile
    longest = int((plan.starts + plan.lengths).max(initial=0))
    pages = -(-longest // shapes.block_size)
    return ladders.smallest_for(plan.num_decodes, prefill, pages, plan.repeats)


def pack(
    plan: PlanArrays,
    rows: Rows,
    bucket: Bucket,
    shapes: StepShapes,
    new_blocks: np.ndarray = NO_BLOCKS,
) -> PackedStep:
    """The plan's arrays in this bucket's layout. Of `new_blocks` as many as have room."""
    buffer, inputs = StepInput.empty(bucket, shapes)
    taken = new_blocks[: len(inputs.blocks.new)]
    inputs.blocks.new[: len(taken)] = taken
    starts = known_starts(plan, rows, shapes)
    if shapes.one_segment:
        slots, chunk_offsets = _pack_one_segment(plan, rows, inputs, starts, shapes)
    else:
        _pack_decodes(plan, rows, inputs, starts, shapes)
        chunk_offsets, last_tokens = _pack_chunks(plan, rows, inputs, bucket, shapes)
        slots = np.concatenate([
            np.arange(plan.num_decodes), bucket.decode_rows + np.arange(len(last_tokens))
        ]).astype(np.int32)  # fmt: skip
        inputs.heads.logit_index[slots[: plan.num_decodes]] = slots[: plan.num_decodes]
        inputs.heads.logit_index[slots[plan.num_decodes :]] = last_tokens
    # Of several runs in one call: where the first one's token will stand.
    ends = np.where(starts < 0, -1, plan.starts + plan.lengths - (plan.repeats - 1))
    samples = plan.samples
    fill_sampling(inputs.sampling, slots, plan.rows[samples], ends[samples], rows.settings)
    if bucket.is_multi_step:
        inputs.multi_step.repeats[0] = plan.repeats
        inputs.multi_step.endings[slots] = rows.settings["endings"][plan.rows]
    chunk_base = 0 if shapes.one_segment else bucket.decode_rows
    return PackedStep(buffer, bucket, slots, chunk_offsets, chunk_base)


def known_starts(plan: PlanArrays, rows: Rows, shapes: StepShapes) -> np.ndarray:
    """i32[entries]: where each entry begins, -1 for decodes at the length that the device knows.

    That is all decodes but those of rows that the plan itself starts. In a pipeline plans carry
    every position, since a stage runs when the row may have moved on.
    """
    starts = plan.starts.copy()
    if not shapes.packed_tables:
        decodes = slice(plan.num_decodes)
        starts[decodes] = -1
        if rows.started:
            started = np.isin(plan.rows[decodes], rows.started)
            starts[decodes][started] = plan.starts[decodes][started]
    return starts


def _pack_decodes(
    plan: PlanArrays, rows: Rows, inputs: StepInput, starts: np.ndarray, shapes: StepShapes
) -> None:
    count = plan.num_decodes
    inputs.tokens.decode_rows[:count] = plan.rows[:count]
    inputs.tiles.decode_starts[:count] = starts[:count]
    _pack_tiles(inputs, 0, rows, plan.rows[:count], plan.starts[:count], shapes)


def _pack_chunks(
    plan: PlanArrays, rows: Rows, inputs: StepInput, bucket: Bucket, shapes: StepShapes
) -> tuple[dict[int, int], list[int]]:
    """Lay chunks out in whole tiles; returns where each begins and the last token of samplers."""
    tile, offset = shapes.prefill_tile, 0
    offsets: dict[int, int] = {}
    last_tokens: list[int] = []
    for entry in range(plan.num_decodes, len(plan.rows)):
        row, start, length = (int(x[entry]) for x in (plan.rows, plan.starts, plan.lengths))
        offsets[entry] = offset
        tokens, targets = inputs.tokens.prefill_tokens, inputs.heads.targets
        tokens[offset : offset + length] = rows.tokens[row, start : start + length]
        targets[offset : offset + length] = rows.tokens[row, start + 1 : start + length + 1]
        within = np.arange(0, length, tile, dtype=np.int32)
        tiles = slice(offset // tile, offset // tile + len(within))
        inputs.tiles.rows[tiles] = row
        inputs.tiles.starts[tiles] = start + within
        inputs.tiles.lengths[tiles] = np.minimum(length - within, tile)
        owners = np.full(len(within), row, np.int32)
        _pack_tiles(inputs, bucket.decode_rows + tiles.start, rows, owners, start + within, shapes)
        if plan.samples[entry]:
            last_tokens.append(bucket.decode_rows + offset + length - 1)
        offset += len(within) * tile
    return offsets, last_tokens


def _pack_one_segment(
    plan: PlanArrays, rows: Rows, inputs: StepInput, starts: np.ndarray, shapes: StepShapes
) -> tuple[np.ndarray, dict[int, int]]:
    """Every token as a decode row of its own, in plan order; all of them have logits."""
    lengths = plan.lengths
    ends = np.cumsum(lengths)
    count, first_chunk = int(lengths.sum()), plan.num_decodes
    owners = np.repeat(plan.rows, lengths)
    within = np.arange(count, dtype=np.int32) - np.repeat(ends - lengths, lengths)
    positions = np.repeat(plan.starts, lengths) + within
    inputs.tokens.decode_rows[:count] = owners
    inputs.tiles.decode_starts[:count] = positions
    # Decode entries are one token each and come first; the host knows the tokens after them.
    inputs.tiles.decode_starts[:first_chunk] = starts[:first_chunk]
    known = slice(first_chunk, count)
    inputs.tokens.decode_tokens[known] = rows.tokens[owners[known], positions[known]]
    inputs.heads.targets[known] = rows.tokens[owners[known], positions[known] + 1]
    inputs.heads.logit_index[:] = np.arange(len(inputs.heads.logit_index))
    _pack_tiles(inputs, 0, rows, owners, positions, shapes)
    slots = ends[plan.samples] - 1
    offsets = {entry: int(ends[entry] - lengths[entry]) for entry in range(first_chunk, len(ends))}
    return slots.astype(np.int32), offsets


def _pack_tiles(
    inputs: StepInput,
    first_tile: int,
    rows: Rows,
    owners: np.ndarray,
    positions: np.ndarray,
    shapes: StepShapes,
) -> None:
    """The tap sets of tiles and, in a pipeline, what they read of their rows' block tables: under a
    window these begin at the first block in view."""
    tiles = slice(first_tile, first_tile + len(owners))
    inputs.tiles.taps[tiles] = rows.settings["taps"][owners]
    if not shapes.packed_tables:
        return
    for group, table, known in zip(shapes.groups, inputs.blocks.tables, rows.tables, strict=True):
        pages = table.shape[1]
        if group.spec.window is None:
            table[tiles] = known[owners, :pages]
            continue
        first_page = np.maximum(positions - group.spec.window + 1, 0) // shapes.block_size
        columns = first_page[:, None] + np.arange(pages)
        inside = np.minimum(columns, known.shape[1] - 1)
        table[tiles] = np.where(columns < known.shape[1], known[owners[:, None], inside], 0)
