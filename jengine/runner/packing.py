"""Fills a StepInput from a plan and the rows' mirror. Pure numpy, vectorised over decode rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jengine.runner.buckets import Bucket, Ladders, StepShapes
from jengine.runner.plan_arrays import PlanArrays
from jengine.runner.rows import SETTINGS, Rows
from jengine.runner.step_input import StepInput


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


def pack(plan: PlanArrays, rows: Rows, bucket: Bucket, shapes: StepShapes) -> PackedStep:
    """The plan's arrays in this bucket's layout."""
    buffer, inputs = StepInput.empty(bucket, shapes)
    if shapes.one_segment:
        slots, chunk_offsets = _pack_one_segment(plan, rows, inputs, shapes)
        _pack_sampling(plan, rows, inputs, slots)
        return PackedStep(buffer, bucket, slots, chunk_offsets, 0)
    _pack_decodes(plan, rows, inputs, shapes)
    chunk_offsets, last_tokens = _pack_chunks(plan, rows, inputs, bucket, shapes)
    slots = np.concatenate([
        np.arange(plan.num_decodes), bucket.decode_rows + np.arange(len(last_tokens))
    ]).astype(np.int32)  # fmt: skip
    inputs.logit_index[slots[: plan.num_decodes]] = slots[: plan.num_decodes]
    inputs.logit_index[slots[plan.num_decodes :]] = last_tokens
    _pack_sampling(plan, rows, inputs, slots)
    if bucket.is_multi_step:
        inputs.repeats[0] = plan.repeats
        inputs.endings[slots] = rows.endings[plan.rows]
    return PackedStep(buffer, bucket, slots, chunk_offsets, bucket.decode_rows)


def _pack_decodes(plan: PlanArrays, rows: Rows, inputs: StepInput, shapes: StepShapes) -> None:
    count = plan.num_decodes
    decoding = plan.rows[:count]
    positions = plan.starts[:count]
    inputs.decode_rows[:count] = decoding
    inputs.positions[:count] = positions
    _pack_tiles(inputs, 0, rows, decoding, positions, shapes)


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
        inputs.prefill_tokens[offset : offset + length] = rows.tokens[row, start : start + length]
        inputs.targets[offset : offset + length] = rows.tokens[row, start + 1 : start + length + 1]
        first = bucket.decode_rows + offset
        inputs.positions[first : first + length] = np.arange(start, start + length)
        tile_starts = np.arange(start, start + length, tile, dtype=np.int32)
        first_tile = bucket.decode_rows + offset // tile
        owners = np.full(len(tile_starts), row, np.int32)
        _pack_tiles(inputs, first_tile, rows, owners, tile_starts, shapes)
        if plan.samples[entry]:
            last_tokens.append(first + length - 1)
        offset += len(tile_starts) * tile
    return offsets, last_tokens


def _pack_one_segment(
    plan: PlanArrays, rows: Rows, inputs: StepInput, shapes: StepShapes
) -> tuple[np.ndarray, dict[int, int]]:
    """Every token as a decode row of its own, in plan order; all of them have logits."""
    lengths = plan.lengths
    ends = np.cumsum(lengths)
    count, first_chunk = int(lengths.sum()), plan.num_decodes
    owners = np.repeat(plan.rows, lengths)
    within = np.arange(count, dtype=np.int32) - np.repeat(ends - lengths, lengths)
    positions = np.repeat(plan.starts, lengths) + within
    inputs.decode_rows[:count] = owners
    inputs.positions[:count] = positions
    # Decode entries are one token each and come first; the host knows the tokens after them.
    known = slice(first_chunk, count)
    inputs.decode_tokens[known] = rows.tokens[owners[known], positions[known]]
    inputs.targets[known] = rows.tokens[owners[known], positions[known] + 1]
    inputs.logit_index[:] = np.arange(len(inputs.logit_index))
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
    """What tiles read of their rows; under a window a table begins at the first block in view."""
    last_tile = first_tile + len(owners)
    inputs.taps[first_tile:last_tile] = rows.taps[owners]
    for group, table, starts, known in zip(
        shapes.groups, inputs.tables, inputs.table_starts, rows.tables, strict=True
    ):
        pages = table.shape[1]
        if group.spec.window is None:
            table[first_tile:last_tile] = known[owners, :pages]
            continue
        first_page = np.maximum(positions - group.spec.window + 1, 0) // shapes.block_size
        columns = first_page[:, None] + np.arange(pages)
        inside = np.minimum(columns, known.shape[1] - 1)
        table[first_tile:last_tile] = np.where(
            columns < known.shape[1], known[owners[:, None], inside], 0
        )
        starts[first_tile:last_tile] = first_page * shapes.block_size


def _pack_sampling(plan: PlanArrays, rows: Rows, inputs: StepInput, slots: np.ndarray) -> None:
    owners = plan.rows[plan.samples]
    # Of several steps in one call: where the first one's token will stand.
    ends = plan.starts + plan.lengths - (plan.repeats - 1)
    sampling = inputs.sampling
    sampling.rows[slots] = owners
    sampling.positions[slots] = ends[plan.samples]
    sampling.seed[slots] = rows.seeds[owners]
    for name in SETTINGS:
        getattr(sampling, name)[slots] = rows.settings[name][owners]
