"""Plans of several stages in one buffer: each found where its stage looks for it."""

from __future__ import annotations

import numpy as np
import pytest

from jengine.runner.buckets import Bucket, Ladders
from jengine.runner.packing import PackedStep
from jengine.runner.pipeline_inputs import common_bucket, joined, moved
from jengine.runner.step_input import StepInput, packed_parts
from tests.runner.test_packing import BUCKET, CONTEXT, ROWS, SHAPES, packed_plan

LARGER = Bucket(5, 64, CONTEXT // 4)
EMBEDDED = ("decode_rows", "decode_tokens", "prefill_tokens")
READ = ("positions", "tables", "table_starts", "taps")
SAMPLED = ("logit_index", "targets", "sampling")


def views(buffer: np.ndarray, bucket: Bucket = BUCKET) -> StepInput:
    return StepInput.over(buffer, bucket, SHAPES)


def arrays(inputs: StepInput, names: tuple[str, ...]) -> list[np.ndarray]:
    parts = [getattr(inputs, name) for name in names]
    return [array for part in parts for array in (part if isinstance(part, tuple) else (part,))]


def test_the_parts_are_all_of_the_buffer_in_order() -> None:
    buffer, inputs = StepInput.empty(BUCKET, SHAPES)
    parts = packed_parts(BUCKET, SHAPES)
    assert (parts[0].start or 0, parts[-1].stop) == (0, len(buffer))
    for number, (part, names) in enumerate(zip(parts, (EMBEDDED, READ, SAMPLED), strict=True)):
        buffer[part] = number
        for array in arrays(inputs, names):
            assert (array.view(np.int32) == number).all()
    assert set(buffer.tolist()) == {0, 1, 2}


def test_a_plan_moves_to_a_larger_bucket() -> None:
    _, packed, old = packed_plan()
    larger = moved(packed, LARGER, SHAPES)
    new = views(larger.buffer, LARGER)
    shift = LARGER.decode_rows - BUCKET.decode_rows
    old_prompts, new_prompts = (
        (views_.positions[rows:], views_.prefill_tokens)
        for views_, rows in ((old, BUCKET.decode_rows), (new, LARGER.decode_rows))
    )
    for ours, theirs in zip(new_prompts, old_prompts, strict=True):
        assert ours[: len(theirs)].tolist() == theirs.tolist()
    assert new.positions[:5].tolist() == [30, 5, -1, -1, -1]
    assert new.decode_rows.tolist() == [4, 1, ROWS, ROWS, ROWS]
    assert (new.positions[LARGER.decode_rows + BUCKET.prefill_tokens :] == -1).all()
    tiles = {0: 0, 1: 1, 4: 5, 5: 6, 6: 7}  # decode rows, then the tiles of prompts
    for before, after in tiles.items():
        for group in (0, 1):
            width = old.tables[group].shape[1]
            found = new.tables[group][after, :width]
            assert found.tolist() == old.tables[group][before].tolist()
            assert new.table_starts[group][after] == old.table_starts[group][before]
    assert larger.chunk_offsets == packed.chunk_offsets
    assert larger.first_token(2) == packed.first_token(2) + shift
    # A slot still samples after the token that it sampled after, with the same settings.
    for before, after in zip(packed.slots, larger.slots, strict=True):
        token, moved_token = old.logit_index[before], new.logit_index[after]
        assert new.positions[moved_token] == old.positions[token]
        for theirs, ours in zip(old.sampling, new.sampling, strict=True):
            assert ours[after].tolist() == theirs[before].tolist()
    unused = set(range(len(new.logit_index))) - set(larger.slots.tolist())
    assert all(new.sampling.rows[slot] == ROWS for slot in unused)


def test_a_plan_that_fits_stays() -> None:
    _, packed, _ = packed_plan()
    assert moved(packed, BUCKET, SHAPES) is packed


def numbered(number: int) -> PackedStep:
    """A plan in which everything is one number."""
    _, packed, _ = packed_plan()
    return packed._replace(buffer=np.full_like(packed.buffer, number))


def test_each_stage_reads_its_own_plan() -> None:
    rows = joined([numbered(1), None, numbered(3)], BUCKET, SHAPES)
    padding = StepInput.empty(BUCKET, SHAPES)[1]
    assert rows[:, -1].tolist() == [0, 1, 2]
    for stage, own in enumerate((1, None, 3)):
        inputs = views(rows[stage, :-1])
        assert all((array == 1).all() for array in arrays(inputs, EMBEDDED)), "what enters"
        for array, nothing in zip(arrays(inputs, READ), arrays(padding, READ), strict=True):
            assert (array == (nothing if own is None else own)).all()
        assert (inputs.targets == 3).all() and (inputs.sampling.rows == 3).all(), "what leaves"


@pytest.mark.parametrize("held", [[None, 0, None], [0, 1, None], [1, None, 2]])
def test_one_bucket_holds_all(held: list[int | None]) -> None:
    ladders = Ladders((2, 4, 8), (8, 32), (4, 16))
    buckets = [Bucket(4, 0, 4), Bucket(2, 0, 16), Bucket(8, 8, 4)]
    _, packed, _ = packed_plan()
    plans = [None if i is None else packed._replace(bucket=buckets[i]) for i in held]
    found = common_bucket(plans, ladders)
    assert found in set(ladders.buckets()) | {buckets[i] for i in held if i is not None}
    for plan in plans:
        if plan is not None:
            assert found.decode_rows >= plan.bucket.decode_rows
            assert found.prefill_tokens >= plan.bucket.prefill_tokens
            assert found.pages >= plan.bucket.pages
