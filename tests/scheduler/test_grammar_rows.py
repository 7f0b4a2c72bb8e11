"""Rows with a grammar: one step in flight, masks in plans, answers that any schedule agrees on."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import settings
from msgspec.structs import replace

from jengine.plan import RowSampling
from jengine.request import Request, WireRequest
from jengine.scheduler.gates import GrammarReady
from jengine.scheduler.plan_builder import PlanBuilder
from jengine.scheduler.planning import MOST_PARKED
from jengine.structured_outputs import GrammarSpec
from tests.grammar.letters import EOS, ids, regex
from tests.scheduler.masked_loop import any_schedule, followed, masked, searched, submitted
from tests.scheduler.scheduler_loop import VOCAB, Loop, TruthProposer, make_wire, rows
from tests.server.serving import letters

WORDS = "[a-z]{3}( [a-z]{2}){2}"


def ruled(
    name: str,
    spec: GrammarSpec | None = None,
    prompt: int = 5,
    max_tokens: int = 30,
    priority: int = 0,
) -> WireRequest:
    """A request with a grammar."""
    sampling = RowSampling(grammar=spec or regex(WORDS), stop_ids=[EOS])
    return make_wire(
        prompt, name, sampling=sampling, eos_token_ids=[EOS], max_tokens=max_tokens,
        priority=priority,
    )  # fmt: skip


def answer(loop: Loop, name: str) -> str:
    return letters().decode(loop.tokens[name])


def test_an_answer_follows_its_grammar_and_ends_where_that_does() -> None:
    loop = followed()
    loop.add(ruled("a"))
    loop.drain()
    assert re.fullmatch(WORDS, answer(loop, "a"))
    assert loop.finals["a"].finish_reason == "stop" and loop.finals["a"].stop_reason is None


def test_such_rows_run_in_the_same_steps_whenever_they_came() -> None:
    loop = followed()
    loop.add(ruled("a"))
    loop.step()  # the first is in flight when the second comes
    loop.add(ruled("b"))
    loop.drain()
    shared = [plan for plan in submitted(loop) if plan.num_decodes]
    assert [plan.num_decodes for plan in shared[:5]] == [2] * 5, "not one in turn with the other"


def test_such_a_row_has_one_step_in_flight_and_others_overlap() -> None:
    loop = followed()
    loop.add(ruled("a"), make_wire(5, "free", max_tokens=20))
    for _ in range(12):
        loop.step()
        flying = [rows(plan) for plan, _ in loop.in_flight]
        assert sum(0 in plan for plan in flying) <= 1, "its last token is not read"
    steps = [rows(plan) for plan in loop.plans]
    assert all(1 in plan for plan in steps), "the free row is in every step"
    assert [0 in plan for plan in steps[:6]] == [True, False] * 3, "every second step at depth 1"
    loop.drain()
    free = make_wire(5, "free", max_tokens=20)
    loop.assert_truth(free)


def test_alone_it_runs_in_every_step() -> None:
    loop = followed()
    loop.add(ruled("a"))
    loop.drain()
    assert len(loop.plans) == len(loop.tokens["a"])


def test_only_its_masks_are_sent() -> None:
    loop = followed()
    loop.add(make_wire(5, "free", max_tokens=30), ruled("a"))
    loop.drain()
    found = [masked(plan) for plan in submitted(loop)]
    assert found[:8] == [[1], [], [], [], [], [], [1], []], "again after three letters alone"
    assert not any(found[-2:])
    words = {len(plan.masks.words) for plan in submitted(loop) if plan.masks}
    assert words == {4 * -(-VOCAB // 32)}


def test_a_prompt_in_chunks_needs_no_mask_before_its_last() -> None:
    loop = followed(depth=0, max_num_batched_tokens=8)
    loop.add(ruled("a", prompt=20))
    loop.drain()
    assert [masked(plan) for plan in submitted(loop)[:6]] == [[], [], [1], [], [], [1]]
    assert re.fullmatch(WORDS, answer(loop, "a"))


def test_a_row_that_is_used_again_forgets_its_grammar() -> None:
    loop = followed(max_num_seqs=1)
    loop.add(ruled("a"), make_wire(5, "free"), ruled("b", regex("[A-Z]{4}")))
    loop.drain()
    loop.assert_truth(make_wire(5, "free"))
    assert re.fullmatch("[A-Z]{4}", answer(loop, "b"))


def test_an_aborted_rows_token_does_not_advance_the_next_owners_matcher() -> None:
    loop = followed(max_num_seqs=1)
    loop.add(ruled("a"), ruled("b", regex("[A-Z]{4}")))
    loop.schedule()
    loop.abort("a")
    loop.schedule()
    loop.drain()
    assert re.fullmatch("[A-Z]{4}", answer(loop, "b"))


FORCED = "ab[cd]efghijklmno[pq]rstuvwxyz0"


def test_forced_tokens_are_appended_without_sampling() -> None:
    loop = followed()
    loop.add(ruled("a", regex(FORCED)), make_wire(5, "free", max_tokens=12))
    loop.drain()
    assert re.fullmatch(FORCED, answer(loop, "a"))
    assert loop.finals["a"].finish_reason == "stop"
    loop.assert_truth(make_wire(5, "free", max_tokens=12))
    known = [one for plan in submitted(loop) for one in plan.known]
    assert [len(one.token_ids) for one in known] == [12, 11], "a sampled token and those behind it"
    wanted = sum(0 in rows(plan) for plan in loop.plans)
    assert wanted < 10, "fewer steps than tokens"
    recorder = loop.scheduler.recorder
    assert recorder.generation_tokens == sum(map(len, loop.tokens.values()))


def test_forced_tokens_end_at_the_limit_and_run_in_chunks() -> None:
    loop = followed(depth=0, max_num_batched_tokens=4)
    loop.add(ruled("a", regex(FORCED), max_tokens=6), ruled("b", regex(FORCED)))
    loop.drain()
    assert len(loop.tokens["a"]) == 6 and loop.finals["a"].finish_reason == "length"
    assert re.fullmatch(FORCED, answer(loop, "b"))


def test_rows_whose_log_probabilities_are_wanted_sample_every_token() -> None:
    loop = followed()
    sampling = RowSampling(grammar=regex(FORCED), stop_ids=[EOS], logprobs=0)
    loop.add(make_wire(5, "a", sampling=sampling, eos_token_ids=[EOS], max_tokens=30))
    loop.drain()
    assert re.fullmatch(FORCED, answer(loop, "a"))
    assert not any(plan.known for plan in submitted(loop))


def test_a_preempted_answer_with_forced_tokens_goes_on_where_it_was() -> None:
    loop = followed(blocks=9, prefix=False)
    loop.add(*(ruled(name, regex(FORCED), max_tokens=26) for name in "abc"))
    loop.drain()
    assert loop.scheduler.num_preemptions > 0
    assert all(re.fullmatch(FORCED, answer(loop, name)) for name in "abc")


def test_a_preempted_answer_goes_on_where_it_was() -> None:
    loop = followed(blocks=8, prefix=False)
    wires = [ruled(name, max_tokens=12) for name in ("a", "b", "c")]
    loop.add(*wires)
    loop.drain()
    assert loop.scheduler.num_preemptions > 0
    alone = followed()
    alone.add(ruled("a", max_tokens=12))
    alone.drain()
    assert loop.tokens["a"] == alone.tokens["a"]
    assert all(re.fullmatch(WORDS, answer(loop, name)) for name in ("a", "b", "c"))


def test_such_a_row_joins_no_multi_step_decode() -> None:
    loop = followed(num_scheduler_steps=4)
    loop.add(ruled("a"), make_wire(5, "free", max_tokens=20))
    loop.drain()
    assert re.fullmatch(WORDS, answer(loop, "a"))
    assert all(plan.repeats == 1 for plan in submitted(loop) if masked(plan))
    assert any(plan.repeats > 1 for plan in submitted(loop)), "the free row alone"


def test_a_refused_token_ends_one_request_with_the_reason() -> None:
    loop = followed()
    loop.add(ruled("bad", regex("(a")), ruled("good"), make_wire(5, "free"))
    loop.drain()
    final = loop.finals["bad"]
    assert final.finish_reason == "error" and final.token_ids == []
    assert final.message is not None and "unclosed group" in final.message
    recorder = loop.scheduler.recorder
    assert recorder.corrupted == 0
    assert recorder.generation_tokens == sum(map(len, loop.tokens.values()))
    assert re.fullmatch(WORDS, answer(loop, "good"))
    loop.assert_truth(make_wire(5, "free"))


def test_a_request_waits_for_its_grammar_and_those_behind_it_pass() -> None:
    jobs = Jobs()
    loop = Loop(gates=[partial(GrammarReady, jobs.begin)])
    loop.add(ruled("late", regex("x")), make_wire(5, "free"))
    plan = loop.schedule()
    assert plan is not None and len(plan.new_rows) == 1, "only the free one"
    jobs.end()
    assert loop.schedule() is not None
    assert loop.scheduler.num_waiting == 0


def test_one_question_a_step_for_many_requests_of_a_grammar() -> None:
    jobs = Jobs()
    loop = Loop(gates=[partial(GrammarReady, jobs.begin)])
    loop.add(*(ruled(str(number)) for number in range(100)))
    while jobs.asked < 100:
        assert loop.schedule() is None, "a few are parked by each step"
    for _ in range(5):
        assert loop.schedule() is None
        assert jobs.asked == 100, "nothing is asked while nothing is told"
    jobs.turn()
    for _ in range(100 // MOST_PARKED + 2):
        assert loop.schedule() is None
    asked = jobs.asked
    assert loop.schedule() is None
    assert jobs.asked == asked + 1, "it may take too long by now"
    loop.abort("0")
    assert loop.schedule() is None and jobs.asked == asked + 2
    jobs.end()
    plan = loop.schedule()
    assert plan is not None and len(plan.new_rows) == 7, "the budget of the step"
    for number in range(1, 100):
        loop.abort(str(number))
    assert not loop.scheduler._requests.waiting._lanes


class Jobs:
    """One compilation, which goes on as it is told."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_over = self.has_begun = False
        self.listeners: list[Callable[[], None]] = []

    def begin(self, spec: GrammarSpec) -> Jobs:
        self.asked += 1
        return self

    def listen(self, tell: Callable[[], None]) -> None:
        self.listeners.append(tell)

    def turn(self) -> None:
        self.has_begun = True
        for tell in self.listeners:
            tell()

    def end(self) -> None:
        self.is_over = True
        for tell in self.listeners:
            tell()


def rule(number: int) -> GrammarSpec:
    """A grammar with or without forced tokens."""
    return regex(WORDS if number % 2 else "[ab]cdefg[hi]jk")


@settings(deadline=None, max_examples=40)
@any_schedule
def test_any_schedule_gives_the_same_answers(
    turns: list[str], blocks: int, depth: int, wrong: int | None, on_device: bool
) -> None:
    loop = searched(blocks, depth, wrong, on_device)
    names: list[str] = []
    for number, turn in enumerate(turns):
        if turn == "add":
            names.append(f"r{number}")
            loop.add(ruled(names[-1], rule(number), prompt=3 + number % 4, max_tokens=11))
        elif turn == "abort" and names:
            loop.abort(names[number % len(names)])
        else:
            loop.step()
    loop.drain()
    for name in names:
        if loop.finals[name].finish_reason == "stop":
            assert re.fullmatch(rule(int(name[1:])).text, answer(loop, name))
        number = int(name[1:])
        alone = followed()
        alone.add(ruled(name, rule(number), prompt=3 + number % 4, max_tokens=11))
        alone.drain()
        assert alone.tokens[name][: len(loop.tokens[name])] == loop.tokens[name]


def drafted_rows(loop: Loop) -> set[int]:
    """The rows that have run drafts."""
    return {one.row for plan in submitted(loop) for one in plan.drafts}


class Fixed:
    """Proposes the tokens of a fixed answer, from where the request is in it."""

    def __init__(self, text: str) -> None:
        self._tokens = ids(text)

    def begin(self, tokens: Sequence[int], prompt_length: int) -> Fixed:
        self._known = len(tokens) - prompt_length
        return self

    def extend(self, tokens: Sequence[int]) -> None:
        self._known += len(tokens)

    def propose(self, count: int, ahead: int = 0) -> np.ndarray:
        return np.array(self._tokens[self._known : self._known + ahead + count], np.int32)

    def close(self) -> None:
        pass


def test_rows_with_grammars_have_drafts_and_the_answers_of_plain_decoding() -> None:
    names = {"a": regex(FORCED), "b": regex(WORDS), "c": regex("[a-z]{2}[0-9]{3}x")}
    plain = followed()
    plain.add(*(ruled(name, spec) for name, spec in names.items()))
    plain.drain()
    for wrong, on_device in product((0, 1, 3), (False, True)):
        source = {"device_wrong": wrong} if on_device else {"proposer": TruthProposer(wrong)}
        loop = followed(**source)
        free = make_wire(5, "free", max_tokens=20)
        loop.add(*(ruled(name, spec) for name, spec in names.items()), free)
        loop.drain()
        assert all(loop.tokens[name] == plain.tokens[name] for name in names)
        loop.assert_truth(free)
        recorder = loop.scheduler.recorder
        assert recorder.generation_tokens == sum(map(len, loop.tokens.values()))


def test_a_draft_is_cut_at_the_first_token_that_the_grammar_refuses() -> None:
    plain = followed()
    plain.add(ruled("a", regex("[a-z]{8}")))
    plain.drain()
    text = answer(plain, "a")
    loop = followed(proposer=Fixed(text[:4] + "7" + text[5:]), most_drafts=6)
    loop.add(ruled("a", regex("[a-z]{8}")))
    loop.drain()
    assert loop.tokens["a"] == plain.tokens["a"]
    plans = submitted(loop)
    (first,) = plans[1].drafts
    assert first.token_ids == ids(text[1:4]), "up to the digit"
    assert masked(plans[1]) == [1] * 3 and plans[1].masks is not None
    assert plans[1].masks.after.tolist() == [1, 2, 3], "behind each draft; its own has not changed"
    assert loop.drafting is not None and loop.drafting.counts.accepted >= 3
    ends = [one.token_ids for plan in plans[2:] for one in plan.drafts]
    assert all(len(one) <= 3 for one in ends), "the end of the answer is no draft"


def test_forced_tokens_are_drafts_that_are_accepted() -> None:
    loop = followed(proposer=Fixed(""))
    sampling = RowSampling(grammar=regex("[ab]cdefg[hi]jk"), stop_ids=[EOS], logprobs=0)
    loop.add(make_wire(5, "a", sampling=sampling, eos_token_ids=[EOS], max_tokens=30))
    loop.drain()
    assert re.fullmatch("[ab]cdefg[hi]jk", answer(loop, "a"))
    assert loop.drafting is not None
    counts = loop.drafting.counts
    assert counts.drafted == counts.accepted > 4 and len(loop.plans) < 8
    logprobs = sum(one.logprobs.values.shape[0] for one in loop.deltas if one.logprobs)
    assert logprobs == len(loop.tokens["a"]), "and have log-probabilities"


def test_drafts_of_the_device_are_cut_where_the_grammar_refuses_them() -> None:
    plain = followed()
    plain.add(ruled("a", regex("[a-z]{8}")))
    plain.drain()
    text = answer(plain, "a")
    next_drafts = ids(text[:4] + "7" + text[5:])
    loop = followed(
        device_wrong=0, most_drafts=6,
        draft=lambda known, count: next_drafts[len(known) - 5 :][:count],
    )  # fmt: skip
    loop.add(ruled("a", regex("[a-z]{8}")))
    loop.drain()
    assert loop.tokens["a"] == plain.tokens["a"]
    plans = submitted(loop)
    assert plans[1].entries.lengths.tolist() == [1 + 3], "up to the digit"
    assert plans[1].drafts[0].token_ids == [], "the device has made them"
    assert masked(plans[1]) == [1] * 3 and plans[1].masks is not None
    assert plans[1].masks.after.tolist() == [1, 2, 3]
    assert loop.drafting is not None and loop.drafting.counts.accepted >= 3


def test_drafts_of_the_device_for_rows_whose_grammar_nobody_follows() -> None:
    """Another executor may not say what was drafted: such rows have no drafts."""
    loop = Loop(device_wrong=0)
    loop.add(ruled("a"), make_wire(5, "free", max_tokens=20))
    loop.drain()
    loop.assert_truth(make_wire(5, "free", max_tokens=20))
    assert {one.row for plan in loop.plans for one in plan.drafts} == {1}, "the free row alone"


def test_a_grammar_that_begins_later_leaves_drafts_free_until_then() -> None:
    begins = replace(regex("[0-9]{3}"), begins_after=tuple(ids("=")))
    # Nothing ends the free part in a script, but a row that may only sample its own text.
    loop = followed(proposer=TruthProposer(0))
    loop.add(ruled("a", begins, max_tokens=12))
    loop.drain()
    assert drafted_rows(loop) == {0}
    plain = followed()
    plain.add(ruled("a", begins, max_tokens=12))
    plain.drain()
    assert loop.tokens["a"] == plain.tokens["a"]


def planned_in_vain(loop: Loop) -> bool:
    """Whether rows with a mask wait for a step, though no step in flight samples for one."""
    flights, planner = loop.scheduler._flights, loop.scheduler._planner
    reads = any(
        request.reads_each_token and wants
        for flight in flights._flights
        for request, wants in zip(
            flight.requests, flight.plan.entries.wants_tokens.tolist(), strict=True
        )
    )
    return planner._read_step > flights.committed and not reads


def test_a_masked_row_that_is_withdrawn_holds_no_other_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    withdrawn: list[str] = []
    withdraw = PlanBuilder.withdraw

    def noted(builder: PlanBuilder, request: Request) -> None:
        planned = [*builder.decodes, *(one for one, _ in builder.chunks)]
        if request.reads_each_token and request in planned:
            withdrawn.append(request.request_id)
        withdraw(builder, request)

    monkeypatch.setattr(PlanBuilder, "withdraw", noted)
    for blocks in (11, 13):
        loop = followed(
            blocks=blocks, policy="priority", max_num_batched_tokens=8, max_model_len=32
        )
        for number in range(12):
            name = f"r{number}"
            if number % 3:
                loop.add(ruled(name, prompt=9 + number % 5, max_tokens=11, priority=12 - number))
            else:
                loop.add(make_wire(7 + number % 4, name, max_tokens=12, priority=12 - number))
            for _ in range(3):
                loop.step()
                assert not planned_in_vain(loop)
        while loop.scheduler.has_unfinished:
            loop.step()
            assert not planned_in_vain(loop)
    assert len(withdrawn) > 5, "the case was met"
