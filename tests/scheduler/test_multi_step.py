"""Multi-step decode: when there is one, how long it is, and that nothing of it is told wrongly."""

from __future__ import annotations

import pytest

from jengine.plan import RowSampling
from tests.executor.scripted import scripted_tokens
from tests.scheduler.scheduler_loop import VOCAB, Loop, make_wire, truth


def repeats(loop: Loop) -> list[int]:
    return [plan.repeats for plan in loop.plans]


def test_decodes_run_several_times_while_no_request_waits() -> None:
    loop = Loop(num_scheduler_steps=4)
    wires = [make_wire(5, "a", max_tokens=11), make_wire(9, "b", max_tokens=20)]
    loop.add(*wires)
    loop.drain()
    loop.assert_truth(*wires)
    # The prompts; then both rows, at most as far as the shorter answer goes; then the longer one.
    assert repeats(loop) == [1, 4, 4, 2, 4, 4, 1]


def test_one_step_at_a_time_while_a_request_waits() -> None:
    loop = Loop(num_scheduler_steps=4, max_num_seqs=1)
    wires = [make_wire(5, "a", max_tokens=9), make_wire(5, "b", max_tokens=9)]
    loop.add(*wires)
    loop.drain()
    loop.assert_truth(*wires)
    first = next(number for number, plan in enumerate(loop.plans) if plan.released)
    assert set(repeats(loop)[:first]) == {1}
    assert max(repeats(loop)) == 4


def test_it_takes_free_blocks_only() -> None:
    loop = Loop(num_scheduler_steps=8, blocks=4, block_size=4)  # 12 tokens in all
    wire = make_wire(2, max_tokens=10)
    loop.add(wire)
    loop.drain()
    loop.assert_truth(wire)
    assert repeats(loop)[:2] == [1, 8]
    tight = Loop(num_scheduler_steps=8, blocks=6, block_size=4)
    wires = [make_wire(3, "a", max_tokens=9), make_wire(3, "b", max_tokens=9)]
    tight.add(*wires)
    tight.drain()
    tight.assert_truth(*wires)
    assert tight.plans[1].repeats == 4  # 8 would take 6 blocks, and there are 5


def test_rows_with_taps_run_one_step_at_a_time() -> None:
    loop = Loop(num_scheduler_steps=4)
    loop.add(make_wire(5, max_tokens=9, taps=1))
    loop.drain()
    assert set(repeats(loop)) == {1}


@pytest.mark.parametrize("depth", [0, 1])
def test_logprobs_are_each_tokens_own(depth: int) -> None:
    loop = Loop(num_scheduler_steps=4, depth=depth)
    wires = [
        make_wire(5, name, max_tokens=9, sampling=RowSampling(logprobs=count))
        for name, count in (("a", 0), ("b", 2))
    ]
    loop.add(*wires)
    loop.drain()
    for wire in wires:
        scores = [d.logprobs for d in loop.deltas if d.request_id == wire.request_id]
        tokens = [d.token_ids for d in loop.deltas if d.request_id == wire.request_id]
        assert [len(score.rank) for score in scores] == [len(own) for own in tokens]
        assert [row[0] for score in scores for row in score.ids.tolist()] == truth(wire)[0]
        columns = {score.ids.shape[1] for score in scores}
        assert columns == {1 + (wire.sampling.logprobs or 0)}


@pytest.mark.parametrize("prompt", range(1, 9))
@pytest.mark.parametrize("count", range(1, 8))
def test_what_an_early_end_left_out_is_not_found(prompt: int, count: int) -> None:
    """Its last token never ran, so a block that it completes must not be taken for computed."""
    loop = Loop(num_scheduler_steps=16, block_size=2)
    tokens = scripted_tokens(make_wire(prompt).prompt_token_ids, count, VOCAB)
    if tokens[-1] in tokens[:-1]:
        pytest.skip("the token comes earlier as well")
    ending = RowSampling(stop_ids=[tokens[-1]])
    wire = make_wire(prompt, max_tokens=20, eos_token_ids=[tokens[-1]], sampling=ending)
    loop.add(wire)
    loop.drain()
    loop.assert_truth(wire)
    after = make_wire([*wire.prompt_token_ids, *tokens, 1, 2, 3], "after")
    loop.add(after)
    loop.drain()  # the executor asserts that every position read holds this very text
    loop.assert_truth(after)


def test_tokens_before_one_that_is_not_finite_are_kept() -> None:
    wire = make_wire(5, max_tokens=12)
    tokens, _ = truth(wire)
    text = wire.prompt_token_ids + tokens[:4]
    loop = Loop(num_scheduler_steps=8, breaks=lambda known: list(known) == text)
    loop.add(wire)
    loop.drain()
    final = loop.finals["r"]
    assert (loop.tokens["r"], final.finish_reason) == (tokens[:4], "error")
    assert final.message is not None and f"position {len(text)}" in final.message
