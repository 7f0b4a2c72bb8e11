"""Plans of several stages in one buffer: each found where its stage looks for it."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jengine.runner.plans.packing import PackedStep
from jengine.runner.plans.pipeline_inputs import common_bucket, joined, moved
from jengine.runner.step.step_input import StepInput, packed_parts
from jengine.runner.variants.buckets import Bucket, Ladders
from tests.runner.test_packing import BUCKET, CONTEXT, ROWS, STAGED, batch_of_plan, packed_plan

LARGER = Bucket(5, 64, CONTEXT // 4)
EMBEDDED = ("tokens",)
READ = ("tiles", "blocks")
SAMPLED = ("multi_step", "heads", "sampling")


def views(buffer: np.ndarray, bucket: Bucket = BUCKET) -> StepInput:
    return StepInput.over(buffer, bucket, STAGED)


def arrays(inputs: StepInput, names: tuple[str, ...]) -> list[np.ndarray]:
    return jax.tree.leaves([getattr(inputs, name) for name in names])


def test_the_parts_are_all_of_the_buffer_in_order() -> None:
    buffer, inputs = StepInput.empty(BUCKET, STAGED)
    parts = packed_parts(BUCKET, STAGED)
    assert (parts[0].start or 0, parts[-1].stop) == (0, len(buffer))
    for number, (part, names) in enumerate(zip(parts, (EMBEDDED, READ, SAMPLED), strict=True)):
        buffer[part] = number
        for array in arrays(inputs, names):
            assert (array.view(np.int32) == number).all()
    assert set(buffer.tolist()) == {0, 1, 2}


def test_a_plan_moves_to_a_larger_bucket() -> None:
    _, packed, old = packed_plan(STAGED)
    larger = moved(packed, LARGER, STAGED)
    new = views(larger.buffer, LARGER)
    shift = LARGER.decode_rows - BUCKET.decode_rows
    before, after = (batch_of_plan(inputs, STAGED) for inputs in (old, new))
    old_prompts, new_prompts = (
        (batch.positions[rows:], inputs.tokens.prefill_tokens)
        for batch, inputs, rows in (
            (before, old, BUCKET.decode_rows),
            (after, new, LARGER.decode_rows),
        )
    )
    for ours, theirs in zip(new_prompts, old_prompts, strict=True):
        assert ours[: len(theirs)].tolist() == theirs.tolist()
    assert after.positions[:5].tolist() == [30, 5, -1, -1, -1]
    assert new.tokens.decode_rows.tolist() == [4, 1, ROWS, ROWS, ROWS]
    assert (after.positions[LARGER.decode_rows + BUCKET.prefill_tokens :] == -1).all()
    tiles = {0: 0, 1: 1, 4: 5, 5: 6, 6: 7}  # decode rows, then the tiles of prompts
    for old_tile, new_tile in tiles.items():
        for group in (0, 1):
            width = before.tables[group].shape[1]
            found = after.tables[group][new_tile, :width]
            assert found.tolist() == before.tables[group][old_tile].tolist()
            starts = (after.table_starts[group][new_tile], before.table_starts[group][old_tile])
            assert starts[0] == starts[1]
    np.testing.assert_array_equal(larger.chunk_tokens, packed.chunk_tokens)
    assert larger.chunk_base == packed.chunk_base + shift
    # A slot still samples after the token that it sampled after, with the same settings.
    for old_slot, new_slot in zip(packed.slots, larger.slots, strict=True):
        token, moved_token = old.heads.logit_index[old_slot], new.heads.logit_index[new_slot]
        assert after.positions[moved_token] == before.positions[token]
        for theirs, ours in zip(old.sampling, new.sampling, strict=True):
            assert ours[new_slot].tolist() == theirs[old_slot].tolist()
    unused = set(range(len(new.heads.logit_index))) - set(larger.slots.tolist())
    assert all(new.sampling.rows[slot] == ROWS for slot in unused)


def test_a_plan_that_fits_stays() -> None:
    _, packed, _ = packed_plan(STAGED)
    assert moved(packed, BUCKET, STAGED) is packed


def numbered(number: int) -> PackedStep:
    """A plan in which everything is one number."""
    _, packed, _ = packed_plan(STAGED)
    return packed._replace(buffer=np.full_like(packed.buffer, number))


def test_each_stage_reads_its_own_plan() -> None:
    rows = joined([numbered(1), None, numbered(3)], BUCKET, STAGED)
    padding = StepInput.empty(BUCKET, STAGED)[1]
    assert rows[:, -1].tolist() == [0, 1, 2]
    for stage, own in enumerate((1, None, 3)):
        inputs = views(rows[stage, :-1])
        assert all((array == 1).all() for array in arrays(inputs, EMBEDDED)), "what enters"
        for array, nothing in zip(arrays(inputs, READ), arrays(padding, READ), strict=True):
            assert (array == (nothing if own is None else own)).all()
        assert (inputs.heads.targets == 3).all() and (inputs.sampling.rows == 3).all(), (
            "what leaves"
        )


@pytest.mark.parametrize("held", [[None, 0, None], [0, 1, None], [1, None, 2]])
def test_one_bucket_holds_all(held: list[int | None]) -> None:
    ladders = Ladders((2, 4, 8), (8, 32), (4, 16))
    buckets = [Bucket(4, 0, 4), Bucket(2, 0, 16), Bucket(8, 8, 4)]
    _, packed, _ = packed_plan(STAGED)
    plans = [None if i is None else packed._replace(bucket=buckets[i]) for i in held]
    found = common_bucket(plans, ladders)
    assert found in set(ladders.buckets()) | {buckets[i] for i in held if i is not None}
    for plan in plans:
        if plan is not None:
            assert found.decode_rows >= plan.bucket.decode_rows
            assert found.prefill_tokens >= plan.bucket.prefill_tokens
            assert found.pages >= plan.bucket.pages
