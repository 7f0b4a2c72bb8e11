"""Drafts in plans: how many run, what is accepted, taken back, published and counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from jengine.config import FREE_TOKENS
from jengine.counts import DraftCounts, ProgramTotals, together
from jengine.plan import NO_DRAFTER, RowSampling
from jengine.scheduler.scheduler import Scheduler
from jengine.speculative.draft_length import token_cost
from jengine.speculative.proposer import NO_DRAFTS
from tests.executor.scripted import scripted_tokens
from tests.kvcache.cache_cases import FULL, sliding
from tests.scheduler.scheduler_loop import VOCAB, Loop, TruthProposer, lengths, make_wire


def speculating(wrong: int = 0, **more: Any) -> Loop:
    return Loop(proposer=TruthProposer(wrong), **more)


def decode_lengths(loop: Loop) -> list[list[int]]:
    return [lengths(plan)[: plan.num_decodes] for plan in loop.plans]


def test_right_drafts_are_all_accepted_without_waiting_for_the_step_before() -> None:
    loop = speculating(depth=1, max_model_len=40)
    wire = make_wire(5, max_tokens=13)
    loop.add(wire)
    loop.drain()
    loop.assert_truth(wire)
    # 1 token after the prompt, then 4 a step, queued before the step before is read.
    assert decode_lengths(loop) == [[], [4], [4], [4]]
    assert [len(delta.token_ids) for delta in loop.deltas] == [1, 4, 4, 4]


def test_the_step_in_flight_takes_the_drafts_at_the_length_that_the_row_has() -> None:
    loop = speculating(wrong=7, depth=1)
    wire = make_wire(5, max_tokens=15)
    loop.add(wire)
    loop.drain()
    loop.assert_truth(wire)
    assert loop.drafting is not None
    counts = loop.drafting.counts
    assert 0 < counts.accepted < counts.drafted
    assert counts.accepted_at == sorted(counts.accepted_at, reverse=True)
    given = [len(delta.token_ids) for delta in loop.deltas]
    assert sum(given) == 15
    assert len(given) < 15
    # The draft at 6 is right and the one at 7 is wrong. The next step was queued before that was
    # known, for position 9 at most: its window has the drafts from 8 on.
    assert given[:3] == [1, 2, 4]
    assert [plan.drafts[0].first for plan in loop.plans[1:3]] == [6, 7]
    assert [plan.entries.starts[0] for plan in loop.plans[1:3]] == [5, 9]


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("wrong", [1, 2, 3, 5])
@pytest.mark.parametrize("groups", [(FULL,), (sliding(3),), (FULL, sliding(6))])
def test_any_drafts_give_the_tokens_of_plain_decoding(
    depth: int, wrong: int, groups: tuple[Any, ...]
) -> None:
    loop = Loop(*groups, proposer=TruthProposer(wrong), depth=depth, blocks=30, block_size=2)
    wires = [make_wire(3 + 4 * n, f"r{n}", max_tokens=9 + 5 * n) for n in range(4)]
    loop.add(*wires)
    loop.drain()
    loop.assert_truth(*wires)


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("wrong", [0, 1, 3])
@pytest.mark.parametrize("groups", [(FULL,), (FULL, sliding(6))])
def test_drafts_of_the_device_give_the_tokens_of_plain_decoding(
    depth: int, wrong: int, groups: tuple[Any, ...]
) -> None:
    loop = Loop(*groups, device_wrong=wrong, depth=depth, blocks=30, block_size=2)
    wires = [make_wire(3 + 4 * n, f"r{n}", max_tokens=9 + 5 * n) for n in range(4)]
    loop.add(*wires)
    loop.drain()
    loop.assert_truth(*wires)
    assert loop.drafting is not None
    counts = loop.drafting.counts
    assert (counts.accepted == counts.drafted) == (wrong == 0)


def test_the_device_never_drafts_from_a_rejected_draft() -> None:
    loop = Loop(device_wrong=7, depth=1)
    wire = make_wire(5, max_tokens=15)
    loop.add(wire)
    loop.drain()
    loop.assert_truth(wire)
    # The drafts at 7 and 14 are wrong; those after the token that stands there instead are right.
    assert [len(delta.token_ids) for delta in loop.deltas] == [1, 2, 4, 3, 4, 1]
    assert not any(drafts.token_ids for plan in loop.plans for drafts in plan.drafts)


def test_steps_draft_as_many_tokens_as_a_row_wants() -> None:
    for wrong, few in ((1, True), (0, False)):
        loop = Loop(
            device_wrong=wrong, depth=0, adaptive=True, max_model_len=256, blocks=80,
            most_drafts=4,
        )  # fmt: skip
        loop.add(make_wire(2, max_tokens=200))
        loop.drain()
        next_drafts = sum(plan.next_drafts for plan in loop.plans)
        assert (next_drafts < 50) == few


def test_the_drafter_reads_prompts_alone_where_no_draft_can_pay() -> None:
    loop = Loop(device_wrong=0, depth=1, adaptive=True, draft_cost=1.0)
    wires = [make_wire(5, f"r{n}", max_tokens=20) for n in range(3)]
    loop.add(*wires[:2])
    for _ in range(8):
        loop.step()
    loop.add(wires[2])
    loop.drain()
    loop.assert_truth(*wires)
    for plan in loop.plans:
        only_decodes = plan.num_decodes == len(plan.entries)
        assert plan.next_drafts == (NO_DRAFTER if only_decodes else 0)


def test_drafts_begin_again_where_a_batch_has_become_small() -> None:
    """Rows count on none that steps of the large batch left out."""
    pays_for_two = 0.8 - token_cost(2, FREE_TOKENS) - 1e-3
    loop = Loop(
        device_wrong=0, depth=1, adaptive=True, draft_cost=pays_for_two, max_model_len=256,
        blocks=80,
    )  # fmt: skip
    wires = [make_wire(5, f"r{n}", max_tokens=20 if n else 160) for n in range(4)]
    loop.add(*wires)
    loop.drain()
    loop.assert_truth(*wires)
    decodes = [plan for plan in loop.plans if plan.num_decodes == len(plan.entries)]
    assert {plan.next_drafts for plan in decodes if plan.num_decodes > 2} == {NO_DRAFTER}
    drafting = [plan for plan in decodes if plan.next_drafts != NO_DRAFTER]
    assert not drafting[0].drafts and drafting[1].drafts


class Silent:
    """A proposer that never drafts, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def begin(self, tokens: Sequence[int], prompt_length: int) -> Silent:
        return self

    def extend(self, tokens: Sequence[int]) -> None:
        pass

    def propose(self, count: int, ahead: int = 0) -> np.ndarray:
        self.asked += 1
        return NO_DRAFTS

    def close(self) -> None:
        pass


def test_a_text_that_does_not_repeat_is_looked_up_less_often() -> None:
    proposer = Silent()
    loop = Loop(proposer=proposer, adaptive=True, max_model_len=256, blocks=80)
    loop.add(make_wire(2, max_tokens=200))
    loop.drain()
    assert 200 / 4 < proposer.asked < 200 / 4 + 40


def test_drafts_stop_at_the_length_cap() -> None:
    loop = speculating(depth=0, most_drafts=8)
    wire = make_wire(5, max_tokens=4)
    loop.add(wire)
    loop.drain()
    loop.assert_truth(wire)
    assert decode_lengths(loop) == [[], [3]]  # 2 drafts and the token after them


def test_an_ending_within_the_accepted_run_cuts_it() -> None:
    prompt = make_wire(5).prompt_token_ids
    tokens = scripted_tokens(prompt, 12, VOCAB)
    for index in (2, 3, 4):
        loop = speculating(depth=1, most_drafts=5)
        wire = make_wire(prompt, max_tokens=12, stop_token_ids=[tokens[index]])
        loop.add(wire)
        loop.drain()
        assert loop.tokens["r"] == tokens[: tokens.index(tokens[index]) + 1]
        assert loop.finals["r"].finish_reason == "stop"
        assert loop.finals["r"].stop_reason == tokens[index]


def test_a_row_that_fails_within_a_run_keeps_what_came_before() -> None:
    prompt = make_wire(5).prompt_token_ids
    tokens = scripted_tokens(prompt, 12, VOCAB)
    loop = speculating(most_drafts=5, breaks=lambda text: len(text) == 5 + 4)
    loop.add(make_wire(prompt, max_tokens=12))
    loop.drain()
    assert loop.tokens["r"] == tokens[:4]
    assert loop.finals["r"].finish_reason == "error"


@pytest.mark.parametrize("depth", [0, 1])
def test_logprobs_are_those_of_accepted_tokens(depth: int) -> None:
    loop = speculating(wrong=4, depth=depth)
    sampling = RowSampling(logprobs=1)
    wires = [make_wire(5, "a", max_tokens=12, sampling=sampling), make_wire(4, "b", max_tokens=9)]
    loop.add(*wires)
    loop.drain()
    loop.assert_truth(*wires)
    position = 5
    for delta in (one for one in loop.deltas if one.request_id == "a"):
        assert delta.logprobs.ids[:, 0].tolist() == delta.token_ids
        expected = [place % 7 for place in range(position, position + len(delta.token_ids))]
        assert delta.logprobs.rank.tolist() == expected
        position += len(delta.token_ids)


def test_prompt_scores_beside_drafts_are_the_prompts_own() -> None:
    loop = speculating(depth=1, max_num_batched_tokens=16)
    first = make_wire(4, "a", max_tokens=20)
    loop.add(first)
    for _ in range(2):
        loop.step()
    scored = make_wire(
        9, "b", sampling=RowSampling(prompt_logprobs=0), skip_reading_prefix_cache=True
    )
    loop.add(scored)
    loop.drain()
    assert any(plan.drafts and plan.num_prompt_tokens for plan in loop.plans)
    scores = next(one for one in loop.deltas if one.request_id == "b").prompt_logprobs
    assert scores.ids[:, 0].tolist() == scored.prompt_token_ids[1:]


def test_rejected_drafts_are_never_found_by_others() -> None:
    """The executor fails a request that reads a block with another text."""
    loop = speculating(wrong=3, depth=1, block_size=2, blocks=40)
    wire = make_wire(4, "a", max_tokens=16)
    loop.add(wire)
    loop.drain()
    again = make_wire(wire.prompt_token_ids + loop.tokens["a"][:11], "b", max_tokens=5)
    loop.add(again)
    loop.drain()
    loop.assert_truth(wire, again)
    assert loop.finals["b"].num_cached_tokens >= 12


def test_drafts_take_free_blocks_only() -> None:
    loop = speculating(depth=0, blocks=7, block_size=2, most_drafts=5)
    wires = [make_wire(3, "a", max_tokens=4), make_wire(3, "b", max_tokens=4)]
    loop.add(*wires)
    loop.drain()
    loop.assert_truth(*wires)
    assert loop.scheduler.num_preemptions == 0


def test_budget_and_decode_rows_limit_drafts() -> None:
    loop = speculating(depth=0, max_num_batched_tokens=6, most_drafts=3)
    loop.add(*(make_wire(2, f"r{n}", max_tokens=12) for n in range(3)))
    loop.drain()
    assert max(plan.num_decode_rows for plan in loop.plans) <= 6
    assert any(plan.num_decode_rows == 6 for plan in loop.plans)


def test_rows_with_taps_take_no_drafts() -> None:
    loop = speculating()
    loop.add(make_wire(5, max_tokens=9, taps=1))
    loop.drain()
    assert not any(plan.drafts for plan in loop.plans)


def test_the_length_adapts_to_what_is_accepted() -> None:
    for wrong, few in ((1, True), (0, False)):
        loop = speculating(wrong=wrong, depth=0, adaptive=True, max_model_len=256, blocks=80)
        loop.add(make_wire(2, max_tokens=200))
        loop.drain()
        assert loop.drafting is not None
        assert (loop.drafting.counts.drafted < 50) == few


def test_every_request_is_closed_when_it_has_ended() -> None:
    proposer = TruthProposer(0)
    begun = []
    begin = proposer.begin
    proposer.begin = lambda *known: begun.append(begin(*known)) or begun[-1]  # type: ignore
    loop = Loop(proposer=proposer)
    loop.add(make_wire(5, "a", max_tokens=6), make_wire(5, "b", max_tokens=30))
    for _ in range(3):
        loop.step()
    loop.abort("b")
    loop.drain()
    loop.schedule()
    assert len(begun) == 2
    assert all(row.is_closed for row in begun)
    assert [len(row.tokens) for row in begun] == [11, 5 + len(loop.tokens["b"])]


def test_counts() -> None:
    loop = speculating(wrong=0, depth=0, most_drafts=3)
    loop.add(make_wire(5, max_tokens=10))
    loop.drain()
    counts = counts_of(loop.scheduler)
    assert counts == DraftCounts(2, 6, 6, [2, 2, 2], [2, 2, 2])
    assert counts.mean_length == pytest.approx(4.0)
    assert loop.scheduler.recorder.generation_tokens == 10
    both = together(
        [loop.scheduler.counts(ProgramTotals()), loop.scheduler.counts(ProgramTotals())]
    )
    assert both.drafts == DraftCounts(4, 12, 12, [4, 4, 4], [4, 4, 4])
    assert counts_of(Loop().scheduler) == DraftCounts()


def counts_of(scheduler: Scheduler) -> DraftCounts:
    return scheduler.counts(ProgramTotals()).drafts
