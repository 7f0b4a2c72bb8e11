"""A plan lies in the packed buffer where the device looks for it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jengine.config import CacheGroup, CacheSpec
from jengine.plan import (
    NO_ENTRIES,
    Entries,
    Entry,
    NewBlocks,
    NewRow,
    Plan,
    RowSampling,
    Wanted,
    packed_tokens,
)
from jengine.runner.plans.packing import NO_BLOCKS, PackedStep, bucket_for, pack
from jengine.runner.plans.rows import SETTINGS, Rows
from jengine.runner.programs.block_tables import block_entries
from jengine.runner.step.batch import StepBatch, batch_of, stage_batch, with_new_blocks
from jengine.runner.step.forward import with_positions
from jengine.runner.step.state import StepState
from jengine.runner.step.step_input import StepInput, packed_size
from jengine.runner.variants.buckets import Bucket, Ladders, StepShapes
from jengine.sampling import empty_row_state
from jengine.sampling.inputs import ROW_SETTINGS, SamplingInput

BLOCK, TILE, WINDOW = 4, 8, 6
ROWS, CONTEXT = 5, 64
FULL = CacheGroup(CacheSpec("full", 1, 8), (0,))
SLIDING = CacheGroup(CacheSpec("sliding", 1, 8, window=WINDOW), (1,))
SHAPES = StepShapes((FULL, SLIDING), BLOCK, TILE, ROWS, CONTEXT)
# In a pipeline, where the plan carries its rows' tables and positions.
STAGED = replace(SHAPES, packed_tables=True)
BUCKET = Bucket(4, 32, CONTEXT // BLOCK)


def batch_of_plan(
    inputs: StepInput,
    shapes: StepShapes,
    lengths: dict[int, int] | None = None,
    written: np.ndarray = NO_BLOCKS,
    bucket: Bucket = BUCKET,
) -> StepBatch:
    """What attention reads of a packed plan, given row lengths and the blocks written before."""
    known = np.zeros(ROWS, np.int32)
    for row, length in (lengths or {}).items():
        known[row] = length
    return jax.tree.map(np.asarray, device_batch(inputs, known, written, bucket, shapes))


@partial(jax.jit, static_argnames=("bucket", "shapes"))
def device_batch(
    inputs: StepInput, lengths: jax.Array, written: jax.Array, bucket: Bucket, shapes: StepShapes
) -> StepBatch:
    if shapes.packed_tables:
        return stage_batch(inputs, shapes)
    tables = jnp.zeros((len(shapes.groups), ROWS, shapes.max_pages), jnp.int32)
    tables = with_new_blocks(with_new_blocks(tables, written), inputs.blocks.new)
    rows = jax.eval_shape(lambda: empty_row_state(1, 1, 1))
    state = StepState((), jnp.zeros(ROWS, jnp.int32), lengths, rows, tables)
    return batch_of(inputs, state, bucket, shapes)


@pytest.mark.parametrize("shapes", [SHAPES, STAGED])
@pytest.mark.parametrize("bucket", [BUCKET, Bucket(2, 0, 3), Bucket(1, 8, 1), Bucket(2, 0, 3, 4)])
def test_host_and_device_read_the_same_buffer(bucket: Bucket, shapes: StepShapes) -> None:
    rng = np.random.default_rng(0)
    size = packed_size(bucket, shapes)
    # Bit patterns of finite floats, so that equal bits are equal numbers in every field.
    buffer = rng.integers(0, 2**30, size, dtype=np.int32)
    host = StepInput.over(buffer, bucket, shapes)
    device = jax.jit(lambda packed: StepInput.over(packed, bucket, shapes))(buffer)
    assert jax.tree.structure(host) == jax.tree.structure(device)
    for ours, theirs in zip(jax.tree.leaves(host), jax.tree.leaves(device), strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        np.testing.assert_array_equal(ours, np.asarray(theirs))
    assert sum(part.size for part in jax.tree.leaves(host)) == size, "a part lies nowhere, or twice"


def test_an_empty_input_is_all_padding() -> None:
    buffer, inputs = StepInput.empty(BUCKET, SHAPES)
    assert (batch_of_plan(inputs, SHAPES).positions == -1).all()
    assert (inputs.tokens.decode_rows == ROWS).all() and (inputs.tiles.rows == ROWS).all()
    assert (inputs.sampling.rows == ROWS).all()
    inputs.heads.targets[0] = 7
    assert 7 in buffer, "the views write into the buffer"


@pytest.mark.parametrize("one_segment", [False, True])
def test_a_plan_without_rows_is_all_padding(one_segment: bool) -> None:
    shapes = replace(SHAPES, one_segment=one_segment)
    ladders = Ladders((4,), (32,), (CONTEXT // BLOCK,))
    plan = Plan(0, NO_ENTRIES, 0)
    bucket = bucket_for(plan, Rows(shapes), ladders)
    packed = pack(plan, Rows(shapes), bucket, shapes)
    inputs = StepInput.over(packed.buffer, bucket, shapes)
    assert len(packed.slots) == 0
    assert (batch_of_plan(inputs, shapes, bucket=bucket).positions == -1).all()
    assert (inputs.sampling.rows == ROWS).all()


def start(row: int, tokens: list[int], **sampling: Any) -> NewRow:
    return NewRow(row, packed_tokens(tokens), len(tokens), RowSampling(**sampling))


def packed_plan(shapes: StepShapes = SHAPES) -> tuple[Plan, PackedStep, StepInput]:
    """Row 4 decodes at 30, row 1 at 5; row 0 runs 8..20 of a prompt, row 2 runs 3 of 3."""
    rows = Rows(shapes)
    prompts = {0: list(range(100, 130)), 2: [7, 8, 9], 4: list(range(25)), 1: [1] * 5}
    new_blocks = []
    for row in prompts:
        table = [100 * row + page + 1 for page in range(CONTEXT // BLOCK)]
        new_blocks += [NewBlocks(row, group, 0, table) for group in (0, 1)]
    new_rows = [
        start(0, prompts[0], temperature=0.5, seed=2**63 + 5),
        start(2, prompts[2], top_k=3, repetition_penalty=1.5, min_tokens=2),
        start(4, prompts[4]),
        start(1, prompts[1], temperature=1.5, min_p=0.25),
    ]
    rows.apply(Plan(0, NO_ENTRIES, 0, new_rows=new_rows))
    plan = Plan(
        1,
        Entries.of(
            [Entry(4, 30, 1), Entry(1, 5, 1), Entry(0, 8, 13, Wanted.NOTHING), Entry(2, 0, 3)]
        ),
        num_decodes=2,
        new_blocks=new_blocks,
    )
    rows.apply(plan)
    packed = pack(plan, rows, BUCKET, shapes, block_entries(plan.new_blocks))
    return plan, packed, StepInput.over(packed.buffer, BUCKET, shapes)


# Where the rows of the packed plan stand when it runs, and the blocks for which it has no room.
LENGTHS = {4: 30, 1: 5}


def read_plan(shapes: StepShapes) -> tuple[PackedStep, StepInput, StepBatch]:
    """The packed plan and what attention reads of it, its rows having been decoded before."""
    plan, packed, inputs = packed_plan(shapes)
    rest = block_entries(plan.new_blocks)[shapes.num_new_blocks(BUCKET) :]
    return packed, inputs, batch_of_plan(inputs, shapes, LENGTHS, rest)


BOTH = pytest.mark.parametrize("shapes", [SHAPES, STAGED], ids=["one stage", "pipeline"])


@BOTH
def test_decode_rows_come_first(shapes: StepShapes) -> None:
    _, inputs, batch = read_plan(shapes)
    assert inputs.tokens.decode_rows.tolist() == [4, 1, ROWS, ROWS]
    assert batch.positions[: BUCKET.decode_rows].tolist() == [30, 5, -1, -1]


def test_the_length_of_a_decoding_row_is_the_devices() -> None:
    """The host only reserves: a step may have advanced the row by less."""
    _, _, inputs = packed_plan()
    batch = batch_of_plan(inputs, SHAPES, {4: 28, 1: 5})
    assert batch.positions[: BUCKET.decode_rows].tolist() == [28, 5, -1, -1]
    batch = batch_of_plan(inputs, SHAPES, {4: CONTEXT, 1: 5})
    assert batch.positions[0] == CONTEXT - 1, "tables end there"


def test_a_row_that_starts_with_a_decode_has_its_position_in_the_plan() -> None:
    rows = Rows(SHAPES)
    plan = Plan(0, Entries.of([Entry(3, 9, 1), Entry(1, 6, 1)]), 2, new_rows=[start(3, [1] * 9)])
    rows.apply(plan)
    packed = pack(plan, rows, BUCKET, SHAPES)
    inputs = StepInput.over(packed.buffer, BUCKET, SHAPES)
    assert inputs.tiles.decode_starts.tolist() == [9, -1, -1, -1]
    assert inputs.sampling.positions[packed.slots].tolist() == [10, -1]
    assert batch_of_plan(inputs, SHAPES, {1: 6}).positions[:4].tolist() == [9, 6, -1, -1]


def lone_plan(shapes: StepShapes = SHAPES, **sampling: Any) -> tuple[PackedStep, StepInput, Rows]:
    """Row 4 decodes; row 0 runs its last token, row 2 3 of a prompt, row 1 a chunk of one token."""
    rows = Rows(shapes)
    new_rows = [
        start(0, list(range(100, 110))),
        start(2, [7, 8, 9], **sampling),
        start(1, [1, 2, 3, 4]),
    ]
    entries = [
        Entry(4, 30, 1), Entry(0, 9, 1), Entry(2, 0, 3), Entry(1, 1, 1, Wanted.NOTHING)
    ]  # fmt: skip
    rows.apply(plan := Plan(1, Entries.of(entries), 1, new_rows=new_rows))
    packed = pack(plan, rows, BUCKET, shapes)
    return packed, StepInput.over(packed.buffer, BUCKET, shapes), rows


def test_a_chunk_of_one_token_is_a_decode_row() -> None:
    packed, inputs, rows = lone_plan()
    assert inputs.tokens.decode_rows.tolist() == [4, 0, 1, ROWS]
    assert inputs.tokens.decode_tokens.tolist() == [-1, 109, 2, -1]
    assert inputs.tiles.rows.tolist() == [2, ROWS, ROWS, ROWS]
    batch = batch_of_plan(inputs, SHAPES, {4: 30})
    assert batch.positions[: BUCKET.decode_rows].tolist() == [30, 9, 1, -1]
    # Each is read where it ran, in the order of the plan.
    assert packed.slots.tolist() == [0, 1, 4]
    assert inputs.heads.logit_index[packed.slots].tolist() == [0, 1, 4 + 2]
    assert inputs.sampling.rows[packed.slots].tolist() == [4, 0, 2]
    assert inputs.sampling.positions[packed.slots].tolist() == [-1, 10, 3]
    assert (packed.chunk_base + packed.chunk_tokens).tolist() == [1, 4, 5, 6, 2]
    ladders = Ladders((1, 2, 4), (TILE, 64), (CONTEXT // BLOCK,))
    entries = Entries.of([Entry(4, 30, 1), Entry(0, 9, 1), Entry(1, 1, 1)])
    assert bucket_for(Plan(2, entries, 1), rows, ladders) == Bucket(4, 0, CONTEXT // BLOCK)


@pytest.mark.parametrize(
    ("shapes", "sampling"),
    [(STAGED, {}), (replace(SHAPES, most_drafts=2), {}), (SHAPES, {"prompt_logprobs": 0}),
     (replace(SHAPES, pooling="vectors"), {})],
    ids=["pipeline", "drafts", "prompt log-probabilities", "pooling"],
)  # fmt: skip
def test_it_is_not_where_a_step_reads_its_tile(
    shapes: StepShapes, sampling: dict[str, Any]
) -> None:
    _, inputs, _ = lone_plan(shapes, **sampling)
    assert inputs.tokens.decode_rows.tolist() == [4, ROWS, ROWS, ROWS]
    assert inputs.tiles.rows.tolist() == [0, 2, 1, ROWS]


@BOTH
def test_chunks_fill_whole_tiles(shapes: StepShapes) -> None:
    packed, inputs, batch = read_plan(shapes)
    assert packed.chunk_tokens.tolist() == [*range(13), 16, 17, 18]
    assert inputs.tokens.prefill_tokens[:13].tolist() == list(range(108, 121))
    assert inputs.tokens.prefill_tokens[16:19].tolist() == [7, 8, 9]
    expected = [*range(8, 21), -1, -1, -1, 0, 1, 2, *[-1] * 13]
    assert batch.positions[BUCKET.decode_rows :].tolist() == expected


def test_runs_of_tiles_belong_to_one_chunk_and_hold_every_tile() -> None:
    """Row 0 fills two tiles, row 2 one; one tile is padding."""
    joining = replace(SHAPES, joined_tiles=2)
    assert joining.num_runs(BUCKET) == 4 and SHAPES.num_runs(BUCKET) == 0
    _, inputs, batch = read_plan(joining)
    assert inputs.tiles.runs.tolist() == batch.runs.tolist() == [0, 2, 3, 4, 4]
    assert StepInput.empty(BUCKET, joining)[1].tiles.runs.tolist() == [0, 2, 4, 4, 4]
    assert read_plan(SHAPES)[1].tiles.runs.size == 0
    few = replace(joining, joined_tiles=4, max_rows=3)
    assert few.num_runs(Bucket(2, 256, 4)) == 8 + 3, "less than a run per tile"
    span = few.group_pages(BUCKET, SLIDING) * BLOCK
    assert span >= WINDOW - 1 + 4 * TILE + BLOCK - 1, "the blocks in view of a whole run"


def test_targets_are_the_tokens_that_follow() -> None:
    _, _, inputs = packed_plan()
    assert inputs.heads.targets[:13].tolist() == list(range(109, 122))
    assert inputs.heads.targets[16:18].tolist() == [8, 9]


@BOTH
def test_tables_of_full_attention_begin_at_the_beginning(shapes: StepShapes) -> None:
    _, _, batch = read_plan(shapes)
    owners = [4, 1, None, None, 0, 0, 2, None]  # decode rows, then tiles
    for tile, owner in enumerate(owners):
        expected = [0] * 16 if owner is None else [100 * owner + i + 1 for i in range(16)]
        assert batch.tables[0][tile].tolist() == expected
    assert (batch.table_starts[0] == 0).all()


@BOTH
def test_tables_of_a_window_begin_at_the_first_block_in_view(shapes: StepShapes) -> None:
    _, _, batch = read_plan(shapes)
    first_queries = {0: (4, 30), 1: (1, 5), 4: (0, 8), 5: (0, 16), 6: (2, 0)}
    pages = SHAPES.group_pages(BUCKET, SLIDING)
    assert batch.tables[1].shape[1] == pages < 16
    for tile, (owner, position) in first_queries.items():
        first_seen = max(0, position - WINDOW + 1)
        page = first_seen // BLOCK
        assert batch.table_starts[1][tile] == page * BLOCK
        assert batch.tables[1][tile].tolist() == [100 * owner + page + i + 1 for i in range(pages)]
        last = position if tile < BUCKET.decode_rows else position + TILE - 1
        assert last < (page + pages) * BLOCK, "the last query of the tile sees all it may"


@BOTH
def test_a_window_at_the_end_of_the_context_reads_the_null_block_beyond(shapes: StepShapes) -> None:
    rows = Rows(shapes)
    table = list(range(1, CONTEXT // BLOCK + 1))
    plan = Plan(
        0, Entries.of([Entry(3, CONTEXT - 1, 1)]), num_decodes=1,
        new_rows=[start(3, [1] * 10)], new_blocks=[NewBlocks(3, 1, 0, table)],
    )  # fmt: skip
    rows.apply(plan)
    packed = pack(plan, rows, BUCKET, shapes, block_entries(plan.new_blocks))
    inputs = StepInput.over(packed.buffer, BUCKET, shapes)
    batch = batch_of_plan(inputs, shapes)
    first = (CONTEXT - WINDOW) // BLOCK
    pages = batch.tables[1].shape[1]
    expected = (table[first:] + [0] * pages)[:pages]
    assert batch.tables[1][0].tolist() == expected


@pytest.mark.parametrize("max_model_len", [4096, 131_072])
def test_a_decode_step_is_small_whatever_the_context(max_model_len: int) -> None:
    shapes = replace(SHAPES, block_size=16, max_rows=256, max_model_len=max_model_len)
    assert packed_size(Bucket(256, 0, shapes.max_pages), shapes) * 4 <= 64_000


def test_a_row_that_another_request_takes_over_reads_its_own_blocks() -> None:
    tables = np.zeros((1, ROWS, 16), np.int32)
    first = block_entries([NewBlocks(2, 0, 0, list(range(1, 11))), NewBlocks(1, 0, 0, [50])])
    second = block_entries([NewBlocks(2, 0, 0, [20, 21]), NewBlocks(2, 0, 2, [22])])
    padding = np.full((3, 4), ROWS, np.int32)
    added = jax.jit(with_new_blocks)
    tables = np.asarray(added(added(tables, first), np.concatenate([second, padding])))
    assert tables[0, 2, :4].tolist() == [20, 21, 22, 4], "what lies behind is never read"
    assert tables[0, 1, :2].tolist() == [50, 0]
    assert not tables[0, [0, 3, 4]].any()


def test_a_new_row_setting_is_one_field() -> None:
    """Each field of the sampler's input but the first two has its source beside it."""
    assert ["rows", "positions", *ROW_SETTINGS] == list(SamplingInput._fields)
    _, _, inputs = packed_plan()
    assert all(getattr(inputs.sampling, name).dtype == one.dtype
               for name, one in ROW_SETTINGS.items())  # fmt: skip


def test_only_rows_that_sample_have_a_slot() -> None:
    plan, packed, inputs = packed_plan()
    assert packed.slots.tolist() == [0, 1, BUCKET.decode_rows]
    assert inputs.heads.logit_index[packed.slots].tolist() == [0, 1, BUCKET.decode_rows + 16 + 2]
    sampling = inputs.sampling
    assert sampling.rows[packed.slots].tolist() == [4, 1, 2]
    assert sampling.positions[packed.slots].tolist() == [-1, -1, 3], "as far as the host knows"
    found = jax.jit(with_positions)(
        sampling, read_plan(SHAPES)[2].positions[inputs.heads.logit_index]
    )
    assert found.positions[packed.slots].tolist() == [31, 6, 3], "where the new token stands"
    others = np.delete(sampling.rows, packed.slots)
    assert (others == ROWS).all()
    assert len(packed.slots) == plan.entries.wants_tokens.sum()


def test_settings_follow_their_row() -> None:
    _, packed, inputs = packed_plan()
    found = {
        name: getattr(inputs.sampling, name)[packed.slots].tolist()
        for name in ("temperature", "min_p", "top_k", "repetition", "prompt_length", "min_position")
    }
    assert found == {
        "temperature": [0.0, 1.5, 0.0],
        "min_p": [0.0, 0.25, 0.0],
        "top_k": [0, 0, 3],
        "repetition": [1.0, 1.0, 1.5],
        "prompt_length": [25, 5, 3],
        "min_position": [25, 5, 5],
    }


def test_a_row_that_starts_again_keeps_nothing_of_its_former_request() -> None:
    rows = Rows(SHAPES)
    rows.apply(
        Plan(0, Entries.of([Entry(0, 0, 3)]), 0, new_rows=[
            start(0, [1, 2, 3], temperature=1.0, seed=9, logprobs=2, prompt_logprobs=-1, min_p=0.5)
        ])
    )  # fmt: skip
    assert (rows.settings["logprobs"][0], rows.settings["prompt_logprobs"][0]) == (3, -1)
    rows.apply(Plan(1, Entries.of([Entry(0, 0, 1)]), 0, new_rows=[start(0, [4])]))
    fresh = Rows(SHAPES)
    fresh.apply(Plan(0, Entries.of([Entry(0, 0, 1)]), 0, new_rows=[start(0, [4])]))
    assert rows.tokens[0, 0] == 4
    for name in SETTINGS:
        assert (rows.settings[name][0] == fresh.settings[name][0]).all()
    assert rows.settings["logprobs"][0] == rows.settings["prompt_logprobs"][0] == 0
