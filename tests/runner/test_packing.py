"""A plan lies in the packed buffer where the device looks for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from jengine.config import CacheGroup, CacheSpec
from jengine.plan import Entry, NewBlocks, NewRow, Plan, RowSampling, Wanted
from jengine.runner.buckets import Bucket, Ladders, StepShapes
from jengine.runner.packing import PackedStep, bucket_for, pack
from jengine.runner.plan_arrays import plan_arrays
from jengine.runner.rows import SETTINGS, Rows
from jengine.runner.step_input import StepInput, packed_size

BLOCK, TILE, WINDOW = 4, 8, 6
ROWS, CONTEXT = 5, 64
FULL = CacheGroup(CacheSpec("full", 1, 8), (0,))
SLIDING = CacheGroup(CacheSpec("sliding", 1, 8, window=WINDOW), (1,))
SHAPES = StepShapes((FULL, SLIDING), BLOCK, TILE, ROWS, CONTEXT)
BUCKET = Bucket(4, 32, CONTEXT // BLOCK)


@pytest.mark.parametrize("bucket", [BUCKET, Bucket(2, 0, 3), Bucket(1, 8, 1)])
def test_host_and_device_read_the_same_buffer(bucket: Bucket) -> None:
    rng = np.random.default_rng(0)
    size = packed_size(bucket, SHAPES)
    # Bit patterns of finite floats, so that equal bits are equal numbers in every field.
    buffer = rng.integers(0, 2**30, size, dtype=np.int32)
    host = StepInput.over(buffer, bucket, SHAPES)
    device = jax.jit(lambda packed: StepInput.over(packed, bucket, SHAPES))(buffer)
    assert jax.tree.structure(host) == jax.tree.structure(device)
    for ours, theirs in zip(jax.tree.leaves(host), jax.tree.leaves(device), strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        np.testing.assert_array_equal(ours, np.asarray(theirs))
    assert sum(part.size for part in jax.tree.leaves(host)) == size, "a part lies nowhere, or twice"


def test_an_empty_input_is_all_padding() -> None:
    buffer, inputs = StepInput.empty(BUCKET, SHAPES)
    assert (inputs.positions == -1).all()
    assert (inputs.decode_rows == ROWS).all()
    assert (inputs.sampling.rows == ROWS).all()
    inputs.targets[0] = 7
    assert 7 in buffer, "the views write into the buffer"


@pytest.mark.parametrize("one_segment", [False, True])
def test_a_plan_without_rows_is_all_padding(one_segment: bool) -> None:
    shapes = replace(SHAPES, one_segment=one_segment)
    ladders = Ladders((4,), (32,), (CONTEXT // BLOCK,))
    plan = plan_arrays(Plan(0, [], 0))
    bucket = bucket_for(plan, shapes, ladders)
    packed = pack(plan, Rows(shapes), bucket, shapes)
    inputs = StepInput.over(packed.buffer, bucket, shapes)
    assert len(packed.slots) == 0
    assert (inputs.positions == -1).all()
    assert (inputs.sampling.rows == ROWS).all()


def start(row: int, tokens: list[int], **sampling: Any) -> NewRow:
    return NewRow(row, tokens, len(tokens), RowSampling(**sampling))


def packed_plan() -> tuple[Plan, PackedStep, StepInput]:
    """Row 4 decodes at 30, row 1 at 5; row 0 runs 8..20 of a prompt, row 2 runs 3 of 3."""
    rows = Rows(SHAPES)
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
    plan = Plan(
        0,
        [Entry(4, 30, 1), Entry(1, 5, 1), Entry(0, 8, 13, Wanted.NOTHING), Entry(2, 0, 3)],
        num_decodes=2,
        new_rows=new_rows,
        new_blocks=new_blocks,
    )
    rows.apply(plan)
    packed = pack(plan_arrays(plan), rows, BUCKET, SHAPES)
    return plan, packed, StepInput.over(packed.buffer, BUCKET, SHAPES)


def test_decode_rows_come_first() -> None:
    _, _, inputs = packed_plan()
    assert inputs.decode_rows.tolist() == [4, 1, ROWS, ROWS]
    assert inputs.positions[: BUCKET.decode_rows].tolist() == [30, 5, -1, -1]


def test_chunks_fill_whole_tiles() -> None:
    _, packed, inputs = packed_plan()
    assert packed.chunk_offsets == {2: 0, 3: 16}
    assert inputs.prefill_tokens[:13].tolist() == list(range(108, 121))
    assert inputs.prefill_tokens[16:19].tolist() == [7, 8, 9]
    expected = [*range(8, 21), -1, -1, -1, 0, 1, 2, *[-1] * 13]
    assert inputs.positions[BUCKET.decode_rows :].tolist() == expected


def test_targets_are_the_tokens_that_follow() -> None:
    _, _, inputs = packed_plan()
    assert inputs.targets[:13].tolist() == list(range(109, 122))
    assert inputs.targets[16:18].tolist() == [8, 9]


def test_tables_of_full_attention_begin_at_the_beginning() -> None:
    _, _, inputs = packed_plan()
    owners = [4, 1, None, None, 0, 0, 2, None]  # decode rows, then tiles
    for tile, owner in enumerate(owners):
        if owner is not None:
            assert inputs.tables[0][tile].tolist() == [100 * owner + i + 1 for i in range(16)]
    assert (inputs.table_starts[0] == 0).all()


def test_tables_of_a_window_begin_at_the_first_block_in_view() -> None:
    _, _, inputs = packed_plan()
    first_queries = {0: (4, 30), 1: (1, 5), 4: (0, 8), 5: (0, 16), 6: (2, 0)}
    pages = SHAPES.group_pages(BUCKET, SLIDING)
    assert inputs.tables[1].shape[1] == pages < 16
    for tile, (owner, position) in first_queries.items():
        first_seen = max(0, position - WINDOW + 1)
        page = first_seen // BLOCK
        assert inputs.table_starts[1][tile] == page * BLOCK
        assert inputs.tables[1][tile].tolist() == [100 * owner + page + i + 1 for i in range(pages)]
        last = position if tile < BUCKET.decode_rows else position + TILE - 1
        assert last < (page + pages) * BLOCK, "the last query of the tile sees all it may"


def test_a_window_at_the_end_of_the_context_reads_the_null_block_beyond() -> None:
    rows = Rows(SHAPES)
    table = list(range(1, CONTEXT // BLOCK + 1))
    plan = Plan(
        0, [Entry(3, CONTEXT - 1, 1)], num_decodes=1,
        new_rows=[start(3, [1] * 10)], new_blocks=[NewBlocks(3, 1, 0, table)],
    )  # fmt: skip
    rows.apply(plan)
    inputs = StepInput.over(pack(plan_arrays(plan), rows, BUCKET, SHAPES).buffer, BUCKET, SHAPES)
    first = (CONTEXT - WINDOW) // BLOCK
    pages = inputs.tables[1].shape[1]
    expected = (table[first:] + [0] * pages)[:pages]
    assert inputs.tables[1][0].tolist() == expected


def test_only_rows_that_sample_have_a_slot() -> None:
    plan, packed, inputs = packed_plan()
    assert packed.slots.tolist() == [0, 1, BUCKET.decode_rows]
    assert inputs.logit_index[packed.slots].tolist() == [0, 1, BUCKET.decode_rows + 16 + 2]
    sampling = inputs.sampling
    assert sampling.rows[packed.slots].tolist() == [4, 1, 2]
    assert sampling.positions[packed.slots].tolist() == [31, 6, 3], "where the new token stands"
    others = np.delete(sampling.rows, packed.slots)
    assert (others == ROWS).all()
    assert len(packed.slots) == sum(entry.wanted is Wanted.TOKENS for entry in plan.entries)


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
    assert set(SETTINGS) <= set(inputs.sampling._fields)


def test_a_row_that_starts_again_keeps_nothing_of_its_former_request() -> None:
    rows = Rows(SHAPES)
    rows.apply(
        Plan(0, [Entry(0, 0, 3)], 0, new_rows=[
            start(0, [1, 2, 3], temperature=1.0, seed=9, logprobs=2, prompt_logprobs=-1, min_p=0.5)
        ])
    )  # fmt: skip
    assert (rows.logprobs[0], rows.prompt_logprobs[0]) == (3, -1)
    rows.apply(Plan(1, [Entry(0, 0, 1)], 0, new_rows=[start(0, [4])]))
    fresh = Rows(SHAPES)
    fresh.apply(Plan(0, [Entry(0, 0, 1)], 0, new_rows=[start(0, [4])]))
    assert rows.tokens[0, 0] == 4
    for name in SETTINGS:
        assert rows.settings[name][0] == fresh.settings[name][0]
    assert (rows.seeds[0] == fresh.seeds[0]).all()
    assert rows.logprobs[0] == rows.prompt_logprobs[0] == 0
