"""Packs a plan and its rows into a StepInput. Pure numpy, vectorised over decode rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jengine.plan import Plan
from jengine.runner.plans.rows import Rows
from jengine.runner.step.draft_input import DraftInput
from jengine.runner.step.prompt_chunk import PromptChunk
from jengine.runner.step.step_input import StepInput
from jengine.runner.variants.buckets import Bucket, Ladders, StepShapes
from jengine.sampling.inputs import fill_sampling

NO_BLOCKS = np.zeros((0, 4), np.int32)


class PackedStep(NamedTuple):
    """A packed plan, and where its results will be in the step's outputs."""

    buffer: np.ndarray
    bucket: Bucket
    slots: np.ndarray  # i32: sampling slot of each entry that wants tokens
    # i32: index of each chunk token among the bucket's prefill tokens; negative for single-token
    # chunks, which run as decode rows.
    chunk_tokens: np.ndarray
    chunk_base: int  # where prefill tokens begin among all tokens of the bucket
    # i32: number of consecutive slots of each entry that wants tokens; None: one each.
    widths: np.ndarray | None = None


def bucket_for(plan: Plan, rows: Rows, ladders: Ladders) -> Bucket:
    """The smallest bucket that holds the plan."""
    shapes = rows.shapes
    _, starts, lengths, _ = plan.entries.columns
    if shapes.one_segment:
        return ladders.smallest_for(int(lengths.sum()), 0, ladders.pages[-1])
    tile, lone = shapes.prefill_tile, lone_tokens(plan, rows)
    prefill = int((-(-lengths[plan.num_decodes :][~lone] // tile)).sum()) * tile
    longest = int((starts + lengths).max(initial=0)) + shapes.lookahead
    pages = min(-(-longest // shapes.block_size), shapes.max_pages)
    decodes = plan.num_decode_rows + int(lone.sum())
    return ladders.smallest_for(decodes, prefill, pages, plan.repeats)


def lone_tokens(plan: Plan, rows: Rows) -> np.ndarray:
    """Mask of single-token chunks, which run as decode rows because a tile would be nearly all
    padding; none where the step needs data that only tiles carry."""
    shapes, chunks = rows.shapes, slice(plan.num_decodes, None)
    lone = plan.entries.lengths[chunks] == 1
    if not lone.any():
        return lone
    owners = plan.entries.rows[chunks]
    reads_tiles = (
        shapes.packed_tables
        or shapes.most_drafts
        or shapes.pooling
        or rows.settings["prompt_logprobs"][owners].any()
    )
    return lone & (not reads_tiles)


def pack(
    plan: Plan,
    rows: Rows,
    bucket: Bucket,
    shapes: StepShapes,
    new_blocks: np.ndarray = NO_BLOCKS,
) -> PackedStep:
    """Pack the plan for this bucket, with as many of `new_blocks` as fit its section."""
    buffer, inputs = StepInput.empty(bucket, shapes)
    taken = new_blocks[: len(inputs.blocks.new)]
    inputs.blocks.new[: len(taken)] = taken
    owners, positions, lengths, _ = plan.entries.columns
    samples = plan.entries.wants_tokens
    starts = known_starts(plan, rows, shapes)
    widths = slot_widths(plan)
    if shapes.one_segment:
        slots, chunk_tokens = _pack_one_segment(plan, rows, inputs, starts, shapes)
    else:
        _pack_decodes(plan, rows, inputs, starts, shapes)
        lone = lone_tokens(plan, rows)
        if lone.any():
            _pack_lone(plan, rows, inputs, lone)
        chunk_tokens, ends = _pack_chunks(plan, rows, inputs, bucket, lone)
        # A decode row's slot is its index.
        first_chunk, sampled = bucket.decode_rows, samples[plan.num_decodes :]
        last_tokens = first_chunk + ends[sampled & ~lone]
        chunk_slots = first_chunk + np.cumsum(sampled & ~lone) - 1
        chunk_slots[lone] = first_chunk + ends[lone]
        slots = np.concatenate([
            first_slots(plan, widths), chunk_slots[sampled]
        ]).astype(np.int32)  # fmt: skip
        decoding = plan.num_decode_rows + int(lone.sum())
        inputs.heads.logit_index[:decoding] = np.arange(decoding)
        inputs.heads.logit_index[first_chunk : first_chunk + len(last_tokens)] = last_tokens
    # In a multi-step decode: the position of the first run's token.
    ends = np.where(starts < 0, -1, positions + lengths - (plan.repeats - 1))
    # Without prefill, slots are the first ones: a slice is faster to write than an index array.
    places = slots if len(chunk_tokens) else slice(plan.num_decode_rows)
    samplers, ends = owners[samples], ends[samples]
    if widths is not None:
        samplers, ends = np.repeat(samplers, widths), np.repeat(ends, widths)
        places = np.repeat(slots, widths) + within_each(widths)
    fill_sampling(inputs.sampling, places, samplers, ends, rows.settings)
    inputs.drafts.count[:] = plan.next_drafts
    if bucket.is_multi_step:
        inputs.multi_step.repeats[0] = plan.repeats
        inputs.multi_step.endings[slots] = rows.settings["endings"][owners]
    return PackedStep(buffer, bucket, slots, chunk_tokens, shapes.first_prompt(bucket), widths)


def prompt_chunks(packed: PackedStep, shapes: StepShapes, size: int) -> Iterator[PromptChunk]:
    """Yield a packed plan's prefill tokens in chunks of `size`, the last one padded."""
    inputs = StepInput.over(packed.buffer, packed.bucket, shapes)
    tokens = int(packed.chunk_tokens.max(initial=-1)) + 1
    targets = inputs.heads.targets
    adapters = None
    if shapes.adapter_slots:
        tiles = inputs.adapters.slots[packed.chunk_base :]
        adapters = np.repeat(tiles, shapes.prefill_tile)
    for first in range(0, tokens, size):
        chunk = slice(first, first + size)
        own = None if adapters is None else padded(adapters[chunk], size)
        yield PromptChunk(np.array([first], np.int32), padded(targets[chunk], size), own)


def chunk_places(plan: Plan, packed: PackedStep) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield each prefill chunk's row, first position, and indices of tokens in the bucket."""
    places, first = packed.chunk_base + packed.chunk_tokens, 0
    for row, start, length, _ in plan.entries.columns.T[plan.num_decodes :].tolist():
        yield row, start, places[first : first + length]
        first += length


def no_prompts(shapes: StepShapes, size: int) -> PromptChunk:
    """A chunk of padding only."""
    nothing = np.zeros(size, np.int32)
    return PromptChunk(nothing[:1], nothing, nothing if shapes.adapter_slots else None)


def padded(numbers: np.ndarray, size: int) -> np.ndarray:
    return np.pad(numbers, (0, size - len(numbers)))


def slot_widths(plan: Plan) -> np.ndarray | None:
    """Sampling slots per sampling entry: one after each token of a decode with drafts, else one.
    None if all have one."""
    if not plan.drafts:
        return None
    widths = plan.entries.lengths.copy()
    widths[plan.num_decodes :] = 1
    return widths[plan.entries.wants_tokens]


def first_slots(plan: Plan, widths: np.ndarray | None) -> np.ndarray:
    """First sampling slot of each decode."""
    if widths is None:
        return np.arange(plan.num_decodes)
    ends = np.cumsum(widths[: plan.num_decodes])
    return ends - widths[: plan.num_decodes]


def within_each(widths: np.ndarray) -> np.ndarray:
    """Ranges 0, 1, ... concatenated, one per width."""
    return np.arange(int(widths.sum())) - np.repeat(np.cumsum(widths) - widths, widths)


def known_starts(plan: Plan, rows: Rows, shapes: StepShapes) -> np.ndarray:
    """i32[entries]: first position per entry, -1 where only the device knows it.

    -1 for decodes, except of rows that this plan starts. Pipelines pack every position, since later
    plans may have advanced the row before a stage runs.
    """
    starts = plan.entries.starts.copy()
    if not shapes.packed_tables:
        decodes = slice(plan.num_decodes)
        starts[decodes] = -1
        if rows.started:
            started = np.isin(plan.entries.rows[decodes], rows.started)
            starts[decodes][started] = plan.entries.starts[decodes][started]
    return starts


def _pack_decodes(
    plan: Plan, rows: Rows, inputs: StepInput, starts: np.ndarray, shapes: StepShapes
) -> None:
    decodes, count = slice(plan.num_decodes), plan.num_decode_rows
    owners, starts = plan.entries.rows[decodes], starts[decodes]
    if plan.drafts:
        lengths = plan.entries.lengths[decodes]
        owners, starts = np.repeat(owners, lengths), np.repeat(starts, lengths)
        _pack_drafts(plan, inputs.drafts, owners, within_each(lengths))
    inputs.tokens.decode_rows[:count] = owners
    inputs.tiles.decode_starts[:count] = starts
    _pack_tiles(inputs, 0, rows, owners, plan.entries.starts[decodes], shapes)


def _pack_drafts(plan: Plan, section: DraftInput, owners: np.ndarray, offsets: np.ndarray) -> None:
    """Fill the draft section: a window of draft tokens per row with drafts, and the window of each
    decode row."""
    section.offsets[: len(offsets)] = offsets
    if not len(section.firsts):
        return  # the device has the drafts
    window_of = {}
    for index, drafts in enumerate(plan.drafts):
        window_of[drafts.row] = index
        section.firsts[index] = drafts.first
        section.tokens[index, : len(drafts.token_ids)] = drafts.token_ids
    section.window[: len(owners)] = [window_of.get(row, 0) for row in owners.tolist()]


def _pack_lone(plan: Plan, rows: Rows, inputs: StepInput, lone: np.ndarray) -> None:
    """Append single-token chunks as decode rows whose tokens the host knows."""
    owners, starts, _, _ = plan.entries.columns[:, plan.num_decodes :][:, lone]
    first = plan.num_decode_rows
    places = slice(first, first + len(owners))
    inputs.tokens.decode_rows[places] = owners
    inputs.tokens.decode_tokens[places] = rows.tokens[owners, starts]
    inputs.tiles.decode_starts[places] = starts
    _pack_tiles(inputs, first, rows, owners, starts, rows.shapes)


def _pack_chunks(
    plan: Plan, rows: Rows, inputs: StepInput, bucket: Bucket, lone: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Pack chunks in whole tiles, and the runs of tiles that attention joins. Returns the indices
    of all chunk tokens and of each chunk's last one, counted from the first prefill token: negative
    for single-token chunks, which are decode rows."""
    shapes = rows.shapes
    tile, offset, lone_row = shapes.prefill_tile, 0, plan.num_decode_rows - bucket.decode_rows
    places, ends, runs = [np.zeros(0, np.int32)], [], list[int]()
    entries = plan.entries.columns.T[plan.num_decodes :].tolist()
    for (row, start, length, _), is_lone in zip(entries, lone.tolist(), strict=True):
        if is_lone:
            places.append(np.array([lone_row], np.int32))
            ends.append(lone_row)
            lone_row += 1
            continue
        chunk = slice(offset, offset + length)
        inputs.tokens.prefill_tokens[chunk] = rows.tokens[row, start : start + length]
        inputs.heads.targets[chunk] = rows.tokens[row, start + 1 : start + length + 1]
        within = np.arange(0, length, tile, dtype=np.int32)
        tiles = slice(offset // tile, offset // tile + len(within))
        inputs.tiles.rows[tiles] = row
        inputs.tiles.starts[tiles] = start + within
        inputs.tiles.lengths[tiles] = np.minimum(length - within, tile)
        owners = np.full(len(within), row, np.int32)
        _pack_tiles(inputs, bucket.decode_rows + tiles.start, rows, owners, start + within, shapes)
        places.append(np.arange(chunk.start, chunk.stop, dtype=np.int32))
        ends.append(chunk.stop - 1)
        runs += range(tiles.start, tiles.stop, shapes.joined_tiles)
        offset += len(within) * tile
    if bucket.prefill_tokens and shapes.joined_tiles > 1:
        runs += range(offset // tile, shapes.num_tiles(bucket), shapes.joined_tiles)
        inputs.tiles.runs[: len(runs)] = runs
        inputs.tiles.runs[len(runs) :] = shapes.num_tiles(bucket)
    return np.concatenate(places), np.array(ends, np.int32)


def _pack_one_segment(
    plan: Plan, rows: Rows, inputs: StepInput, starts: np.ndarray, shapes: StepShapes
) -> tuple[np.ndarray, np.ndarray]:
    """Pack every token as a decode row, in plan order; all of them have logits."""
    rows_of_entries, begins, lengths, _ = plan.entries.columns
    ends = np.cumsum(lengths)
    count, first_chunk = int(lengths.sum()), plan.num_decodes
    owners = np.repeat(rows_of_entries, lengths)
    within = np.arange(count, dtype=np.int32) - np.repeat(ends - lengths, lengths)
    positions = np.repeat(begins, lengths) + within
    inputs.tokens.decode_rows[:count] = owners
    inputs.tiles.decode_starts[:count] = positions
    # Decode entries are one token each and come first; the host knows the tokens after them.
    inputs.tiles.decode_starts[:first_chunk] = starts[:first_chunk]
    known = slice(first_chunk, count)
    inputs.tokens.decode_tokens[known] = rows.tokens[owners[known], positions[known]]
    inputs.heads.targets[known] = rows.tokens[owners[known], positions[known] + 1]
    inputs.heads.logit_index[:] = np.arange(len(inputs.heads.logit_index))
    _pack_tiles(inputs, 0, rows, owners, positions, shapes)
    slots = ends[plan.entries.wants_tokens] - 1
    return slots.astype(np.int32), np.arange(first_chunk, count, dtype=np.int32)


def _pack_tiles(
    inputs: StepInput,
    first_tile: int,
    rows: Rows,
    owners: np.ndarray,
    positions: np.ndarray,
    shapes: StepShapes,
) -> None:
    """Pack per tile: tap set, adapter and, in a pipeline, the block table; with a sliding window it
    starts at the first visible block."""
    tiles = slice(first_tile, first_tile + len(owners))
    inputs.tiles.taps[tiles] = rows.settings["taps"][owners]
    if shapes.adapter_slots:
        inputs.adapters.slots[tiles] = rows.settings["adapter"][owners]
    if not shapes.packed_tables:
        return
    for group, table, known in zip(shapes.groups, inputs.blocks.tables, rows.tables, strict=True):
        pages = table.shape[1]
        if group.spec.window is None:
            table[tiles] = known[owners, :pages]
            continue
        first_page = group.spec.first_read(positions) // shapes.block_size
        columns = first_page[:, None] + np.arange(pages)
        inside = np.minimum(columns, known.shape[1] - 1)
        table[tiles] = np.where(columns < known.shape[1], known[owners[:, None], inside], 0)
