"""Drafts of a plan lie in the packed buffer where the device finds them for any length of a row."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jengine.outputs import NO_TOKEN, StepOutput
from jengine.plan import Drafts, Entries, Entry, NewRow, Plan, RowSampling, packed_tokens
from jengine.runner.plans.packing import NO_BLOCKS, PackedStep, bucket_for, pack
from jengine.runner.plans.rows import Rows
from jengine.runner.plans.step_results import PendingStep
from jengine.runner.step.batch import batch_of, row_lengths
from jengine.runner.step.draft_input import run_drafts, slot_drafts
from jengine.runner.step.forward import input_tokens
from jengine.runner.step.state import StepState
from jengine.runner.step.step_input import StepInput, packed_size
from jengine.runner.variants.buckets import Bucket, Ladders
from jengine.sampling import empty_row_state
from tests.runner.test_packing import CONTEXT, ROWS, SHAPES

DRAFTED = replace(SHAPES, most_drafts=3, draft_window=6)
BUCKET = Bucket(8, 32, CONTEXT // 4)
# Row 4 stands at 30 if both drafts in flight are accepted, else at 28 or 29.
WINDOW = Drafts(4, 29, [50, 51, 52, 53, 54])
LAST = {4: 9, 1: 8}


def drafted_plan(drafts: Drafts = WINDOW) -> tuple[Plan, PackedStep, StepInput]:
    """Row 4 decodes with 3 drafts, row 1 without, and row 0 runs a prompt of 5."""
    rows = Rows(DRAFTED)
    begun = NewRow(0, packed_tokens([7, 8, 9, 10, 11]), 5, RowSampling(top_k=3))
    known = [NewRow(row, packed_tokens([1] * 5), 5, RowSampling(top_k=row)) for row in LAST]
    rows.apply(Plan(0, Entries(b""), 0, new_rows=known))
    entries = Entries.of([Entry(4, 30, 4), Entry(1, 5, 1), Entry(0, 0, 5)])
    plan = Plan(1, entries, 2, new_rows=[begun], drafts=[drafts])
    rows.apply(plan)
    packed = pack(plan, rows, BUCKET, DRAFTED, NO_BLOCKS)
    return plan, packed, StepInput.over(packed.buffer, BUCKET, DRAFTED)


@jax.jit
def derived(buffer: jax.Array, length: jax.Array) -> tuple[jax.Array, ...]:
    """Tokens, positions, earlier drafts and offsets of the decode rows, row 4 being this long."""
    inputs = StepInput.over(buffer, BUCKET, DRAFTED)
    lengths = jnp.zeros(ROWS, jnp.int32).at[jnp.array([4, 1])].set(jnp.array([length, 5]))
    last = jnp.zeros(ROWS, jnp.int32).at[jnp.array([4, 1])].set(jnp.array([LAST[4], LAST[1]]))
    tables = jnp.zeros((2, ROWS, SHAPES.max_pages), jnp.int32)
    state = StepState((), last, lengths, jax.eval_shape(lambda: empty_row_state(1, 1, 1)), tables)
    lengths = row_lengths(inputs, state)
    drafts = run_drafts(inputs.drafts, lengths, None, DRAFTED)
    tokens = input_tokens(inputs.tokens, state, drafts)[: BUCKET.decode_rows]
    batch = batch_of(inputs, state, BUCKET, DRAFTED, drafts)
    assert batch.offsets is not None, "recurrent layers see which decode rows are drafts"
    slots = slot_drafts(drafts, DRAFTED.num_slots(BUCKET), 3)
    assert slots is not None
    return tokens, batch.positions[: BUCKET.decode_rows], slots.earlier, batch.offsets


def ran(packed: PackedStep, length: int) -> tuple[list[int], list[int], list[list[int]]]:
    """Tokens, positions and earlier drafts of the decode rows, row 4 being this long."""
    found = derived(packed.buffer, length)
    tokens, positions, earlier, offsets = (array.tolist() for array in found)
    assert offsets == [0, 1, 2, 3, 0, 0, 0, 0]
    return tokens, positions, earlier


@pytest.mark.parametrize(
    ("length", "drafts"), [(28, [50, 51, 52]), (29, [51, 52, 53]), (30, [52, 53, 54])]
)
def test_drafts_follow_the_length_that_the_row_has(length: int, drafts: list[int]) -> None:
    _, packed, _ = drafted_plan()
    tokens, positions, earlier = ran(packed, length)
    assert tokens[:5] == [LAST[4], *drafts, LAST[1]]
    assert positions == [*range(length, length + 4), 5, -1, -1, -1]
    none, (one, two, three) = [-1, -1, -1], drafts
    assert earlier[:5] == [none, [one, -1, -1], [two, one, -1], [three, two, one], none]
    assert earlier[5:] == [none] * (DRAFTED.num_slots(BUCKET) - 5)


def test_a_draft_that_is_missing_does_not_run() -> None:
    _, packed, _ = drafted_plan(Drafts(4, 29, [50, 51, 52]))
    assert ran(packed, 28)[1] == [28, 29, 30, 31, 5, -1, -1, -1]
    tokens, positions, _ = ran(packed, 30)
    assert positions == [30, 31, -1, -1, 5, -1, -1, -1]
    assert tokens[:2] == [LAST[4], 52]
    assert min(tokens) >= 0, "a token is an index into the embedding"


def test_each_draft_is_a_decode_row_and_a_slot() -> None:
    plan, packed, inputs = drafted_plan()
    assert inputs.tokens.decode_rows.tolist() == [4, 4, 4, 4, 1, ROWS, ROWS, ROWS]
    assert packed.slots.tolist() == [0, 4, 8]
    assert packed.widths is not None
    assert packed.widths.tolist() == [4, 1, 1]
    assert inputs.heads.logit_index[[0, 1, 2, 3, 4, 8]].tolist() == [0, 1, 2, 3, 4, 8 + 4]
    assert inputs.sampling.rows[:9].tolist() == [4, 4, 4, 4, 1, ROWS, ROWS, ROWS, 0]
    assert inputs.sampling.top_k[:9].tolist() == [4, 4, 4, 4, 1, 0, 0, 0, 3]
    assert inputs.sampling.positions[:5].tolist() == [-1] * 5, "the device knows them"
    ladders = Ladders((2, 4, 8), (32,), (CONTEXT // 4,))
    assert bucket_for(plan, Rows(DRAFTED), ladders) == BUCKET


def test_results_are_put_in_the_order_of_entries() -> None:
    plan, packed, _ = drafted_plan()
    tokens = np.full(DRAFTED.num_slots(BUCKET), 99, np.int32)
    tokens[[0, 1, 2, 3, 4, 8]] = [50, 51, NO_TOKEN, NO_TOKEN, 60, 70]
    result = PendingStep(plan, packed, StepOutput(jnp.asarray(tokens))).result()
    no = NO_TOKEN
    assert result.tokens.tolist() == [[50, 51, no, no], [60, no, no, no], [70, no, no, no]]


def test_engines_without_drafts_pack_none() -> None:
    _, inputs = StepInput.empty(BUCKET, SHAPES)
    assert sum(part.size for part in inputs.drafts) == 0
    bursts = replace(BUCKET, prefill_tokens=0, repeats=4)
    assert packed_size(bursts, DRAFTED) == packed_size(bursts, SHAPES)
