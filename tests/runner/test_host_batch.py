"""The batch of the host's logits processors: places without gaps, whatever comes and goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jengine.logits_processor import BatchUpdate, MoveDirectionality, process_dict_updates
from jengine.plan import NO_ENTRIES, KnownTokens, NewRow, Plan, RowSampling, packed_tokens
from jengine.runner.host_processors import HostBatch, params_of
from jengine.sampling_params import SamplingParams

PROMPT = [4, 5]


def new_row(row: int, outputs: list[int] | None = None) -> NewRow:
    sampling = RowSampling(extra_args={"row": row}, temperature=0.5, stop_ids=[3])
    return NewRow(row, packed_tokens([*PROMPT, *(outputs or [])]), len(PROMPT), sampling)


def row_of(params: SamplingParams, prompt: object, output: object) -> int:
    return (params.extra_args or {})["row"]


@given(st.lists(st.tuples(st.sets(st.integers(0, 7)), st.sets(st.integers(0, 7))), max_size=20))
def test_updates_tell_where_each_request_is(turns: list[tuple[set[int], set[int]]]) -> None:
    batch, rows = HostBatch(), dict[int, int]()  # place -> row, by the updates alone
    for step, (started, released) in enumerate(turns):
        gone = sorted(released & batch.rows.keys())
        plan = Plan(
            step, NO_ENTRIES, 0, new_rows=[new_row(row) for row in sorted(started)], released=gone
        )
        before = {row: one.place for row, one in batch.rows.items()}
        update = batch.update(plan)
        process_dict_updates(rows, update, row_of)
        assert rows == {one.place: row for row, one in batch.rows.items()}
        assert sorted(rows) == list(range(len(batch)))
        if update is None:
            assert before == {row: one.place for row, one in batch.rows.items()}
        else:
            assert update.batch_size == len(batch)


def test_output_ids_are_one_list_that_grows() -> None:
    batch = HostBatch()
    update = batch.update(Plan(0, NO_ENTRIES, 0, new_rows=[new_row(2, [8])]))
    assert update is not None
    ((place, params, prompt, output),) = update.added
    assert (place, prompt, output) == (0, PROMPT, [8])
    assert params.temperature == 0.5 and params.extra_args == {"row": 2}
    batch.take([batch.rows[2]], [9])
    batch.take([batch.rows[2]], [-1])  # the logits were not finite
    assert output == [8, 9]
    assert batch.update(Plan(1, NO_ENTRIES, 0, known=[KnownTokens(2, 3, [9, 10, 11])])) is None
    assert output == [8, 9, 10, 11], "tokens that were appended unsampled"
    again = batch.update(Plan(2, NO_ENTRIES, 0, new_rows=[new_row(2)]))
    assert again is not None and again.added[0][0] == 0 and not again.removed


def test_entries_change_places() -> None:
    entries = {0: "a", 1: "b", 2: "c"}
    moves = [(0, 1, MoveDirectionality.SWAP), (2, 0, MoveDirectionality.UNIDIRECTIONAL)]
    assert process_dict_updates(entries, BatchUpdate(2, [], [], moves), lambda *_: None)
    assert entries == {1: "a", 0: "c"}
    assert not process_dict_updates(entries, None, lambda *_: None)
    assert process_dict_updates(entries, BatchUpdate(1, [1], [], []), lambda *_: None)
    assert entries == {0: "c"}


def test_parameters_are_what_a_step_knows() -> None:
    sampling = RowSampling(temperature=0.7, top_k=4, logit_bias={3: 1.0}, stop_ids=[2], logprobs=1)
    params = params_of(sampling)
    assert (params.temperature, params.top_k, params.logprobs) == (0.7, 4, 1)
    assert params.logit_bias == {3: 1.0} and params.stop_token_ids == [2]
