"""Ends of requests: stops, aborts, errors; and what is delivered with the tokens."""

from __future__ import annotations

import numpy as np
import pytest

from jengine.outputs import StepOutput
from jengine.plan import RowSampling
from jengine.repetition_detection import RepetitionDetectionParams
from tests.executor.scripted import scripted_tokens
from tests.kvcache.cache_cases import sliding
from tests.scheduler.scheduler_loop import VOCAB, Loop, make_wire, truth


def first_tokens(wire, count=9):
    return scripted_tokens(wire.prompt_token_ids, count, VOCAB)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_end_of_sequence_stops_without_a_stop_reason(depth):
    loop = Loop(depth=depth)
    third = first_tokens(make_wire(5))[2]
    wire = make_wire(5, max_tokens=9, eos_token_ids=[third], stop_token_ids=[third])
    loop.add(wire)
    loop.drain()
    loop.assert_truth(wire)
    assert (loop.finals["r"].finish_reason, loop.finals["r"].stop_reason) == ("stop", None)
    assert loop.tokens["r"][-1] == third


def test_a_stop_id_is_the_stop_reason():
    loop = Loop()
    third = first_tokens(make_wire(5))[2]
    loop.add(make_wire(5, max_tokens=9, stop_token_ids=[third]))
    loop.drain()
    assert (loop.finals["r"].finish_reason, loop.finals["r"].stop_reason) == ("stop", third)


def test_a_stop_on_the_last_allowed_token_is_a_stop():
    loop = Loop()
    tokens = first_tokens(make_wire(5))
    loop.add(make_wire(5, max_tokens=3, eos_token_ids=[tokens[2]]))
    loop.drain()
    assert loop.finals["r"].finish_reason == "stop"


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_an_answer_that_repeats_itself_ends(depth):
    rule = RepetitionDetectionParams(max_pattern_size=2, min_count=2)
    tokens = first_tokens(make_wire(5), 300)
    ends = [count for count in range(1, 301) if rule.found_in(tokens[:count])]
    assert len(ends) > 1
    for least, cap in ((0, 300), (ends[0] + 1, 300), (0, ends[0])):
        loop = Loop(depth=depth, max_model_len=400, blocks=130)
        sampling = RowSampling(min_tokens=least)
        loop.add(make_wire(5, max_tokens=cap, repetition=rule, sampling=sampling))
        loop.drain()
        final, expected = loop.finals["r"], next(end for end in ends if end >= least)
        assert loop.tokens["r"] == tokens[:expected]
        said = ("length", None) if cap == expected else ("repetition", "repetition_detected")
        assert (final.finish_reason, final.stop_reason) == said


def test_an_end_of_sequence_comes_before_a_repetition():
    rule = RepetitionDetectionParams(max_pattern_size=2, min_count=2)
    tokens = first_tokens(make_wire(5), 300)
    end = next(count for count in range(1, 301) if rule.found_in(tokens[:count]))
    stop = tokens[end - 1]
    first = tokens.index(stop) + 1
    loop = Loop(max_model_len=400, blocks=130)
    loop.add(make_wire(5, max_tokens=300, repetition=rule, eos_token_ids=[stop]))
    loop.drain()
    assert loop.tokens["r"] == tokens[:first] and loop.finals["r"].finish_reason == "stop"


def test_the_model_length_caps_as_well():
    loop = Loop(max_model_len=12)
    loop.add(make_wire(9, max_tokens=50))
    loop.drain()
    assert len(loop.tokens["r"]) == 3
    assert loop.finals["r"].finish_reason == "length"


def test_min_tokens_is_the_devices_business_but_the_cap_holds():
    tokens = first_tokens(make_wire(5))
    sampling = RowSampling(min_tokens=4, stop_ids=[tokens[0]])
    loop = Loop()
    loop.add(make_wire(5, max_tokens=4, eos_token_ids=[tokens[0]], sampling=sampling))
    loop.drain()
    assert len(loop.tokens["r"]) == 4 and loop.finals["r"].finish_reason == "length"


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("turns", range(9))
def test_abort_at_every_point(depth, turns):
    loop = Loop(depth=depth, max_num_batched_tokens=4, blocks=17)
    other = make_wire(5, "other", max_tokens=6)
    loop.add(make_wire(7, "gone", max_tokens=4), other)
    for turn in range(turns):
        if turn % 2 == 0 and len(loop.in_flight) <= depth:
            loop.schedule()
        elif loop.in_flight:
            loop.commit()
    delta = loop.abort("gone")
    assert (delta is None) == (loop.finals["gone"].finish_reason != "abort")
    assert loop.abort("gone") is None
    loop.drain()
    loop.assert_truth(other)


def test_aborting_an_unknown_request_is_nothing():
    assert Loop().abort("nobody") is None


def test_an_abort_beats_the_step_that_would_have_finished():
    loop = Loop()
    loop.add(make_wire(5, max_tokens=1))
    loop.schedule()
    assert loop.abort("r").finish_reason == "abort"
    assert loop.commit() == []


def test_an_identity_may_be_used_again_while_old_steps_are_in_flight():
    loop = Loop(depth=2)
    loop.add(make_wire(5, max_tokens=9))
    loop.schedule()
    loop.schedule()
    loop.abort("r")
    again = make_wire(6, "r", max_tokens=3)
    loop.finals.clear()
    loop.add(again)
    loop.drain()
    loop.assert_truth(again)


def test_results_of_a_plan_forgotten_by_reset_are_ignored():
    loop = Loop(depth=1)
    loop.add(make_wire(5, "a", max_tokens=9), make_wire(5, "b"))
    plan = loop.schedule()
    deltas = loop.scheduler.reset()
    assert {(d.request_id, d.finish_reason) for d in deltas} == {("a", "abort"), ("b", "abort")}
    assert loop.scheduler.commit(plan, StepOutput(np.ones((2, 1), np.int32))) == []
    loop.in_flight.clear()
    wire = make_wire(5, "c")
    loop.add(wire)
    loop.drain()
    loop.assert_truth(wire)


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("groups", [(), (sliding(3),)])
def test_one_row_without_finite_logits_fails_alone(depth, groups):
    bad = make_wire(9, "bad", max_tokens=9)
    broken = bad.prompt_token_ids + first_tokens(bad, 4)
    loop = Loop(*groups, depth=depth, breaks=lambda tokens: list(tokens) == broken)
    good = make_wire(9, "good", max_tokens=9)
    loop.add(bad, good)
    loop.drain()
    loop.assert_truth(good)
    final = loop.finals["bad"]
    assert final.finish_reason == "error" and "not finite" in final.message
    assert loop.tokens["bad"] == first_tokens(bad, 4)
    loop.add(make_wire(broken, "again", max_tokens=1))
    loop.drain()
    assert loop.finals["again"].num_cached_tokens == 0
    loop.add(make_wire(good.prompt_token_ids, "good again"))
    loop.drain()
    assert loop.finals["good again"].num_cached_tokens == 8


class Invented:
    """A step in which one row gets a token that the model does not have."""

    def __init__(self, output, row, token):
        tokens = output.tokens.copy()
        tokens[row] = token
        self.output = output._replace(tokens=tokens)

    def result(self):
        return self.output


@pytest.mark.parametrize("depth", [0, 1])
def test_a_token_beyond_the_vocabulary_ends_its_request_alone(depth):
    loop = Loop(depth=depth, vocab_size=VOCAB)
    loop.add(make_wire(9, "good", max_tokens=9), make_wire(9, "bad", max_tokens=9))
    loop.step()
    if not depth:
        loop.schedule()
    plan, future = loop.in_flight.pop()
    loop.in_flight.append((plan, Invented(future.output, 1, VOCAB)))
    loop.drain()
    final = loop.finals["bad"]
    assert final.finish_reason == "error" and f"one of the {VOCAB} in" in final.message
    assert VOCAB not in loop.tokens["bad"]
    loop.assert_truth(make_wire(9, "good", max_tokens=9))
    loop.add(make_wire(9, "bad again"))
    loop.drain()
    assert loop.finals["bad again"].finish_reason == "length"


def test_a_preempted_row_can_still_fail():
    bad = make_wire(9, "bad", max_tokens=9)
    loop = Loop(breaks=lambda tokens: len(tokens) == 10)
    loop.add(bad)
    loop.schedule()
    loop.schedule()
    loop.scheduler.reset_prefix_cache(reset_running_requests=True)
    loop.drain()
    assert loop.finals["bad"].finish_reason == "error"
    assert loop.cache.groups[0].pool.num_cached == 0


def expected_scores(prompt):
    values = [-(position + 1) - token / 1024 for position, token in enumerate(prompt[1:])]
    return np.asarray(values, np.float32)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("wanted", [0, 2, -1])
def test_prompt_scores_are_complete_over_chunks_and_preemption(depth, wanted):
    loop = Loop(depth=depth, max_num_batched_tokens=4)
    sampling = RowSampling(prompt_logprobs=wanted)
    wire = make_wire(11, sampling=sampling, skip_reading_prefix_cache=True)
    loop.add(wire)
    loop.step()
    loop.step()
    loop.scheduler.reset_prefix_cache(reset_running_requests=True)
    loop.drain()
    loop.assert_truth(wire)
    delivered = [delta.prompt_logprobs for delta in loop.deltas]
    assert all(later is None for later in delivered[1:]), "once, with the first token"
    scores = delivered[0]
    columns = 1 + VOCAB if wanted == -1 else 1 + wanted
    assert scores.values.shape == scores.ids.shape == (10, columns)
    assert scores.ids[:, 0].tolist() == wire.prompt_token_ids[1:]
    np.testing.assert_allclose(scores.values[:, 0], expected_scores(wire.prompt_token_ids))


def test_a_prompt_of_one_token_has_no_scores_but_an_answer():
    loop = Loop()
    sampling = RowSampling(prompt_logprobs=1)
    loop.add(make_wire([5], sampling=sampling, skip_reading_prefix_cache=True))
    loop.drain()
    assert loop.deltas[0].prompt_logprobs.values.shape[0] == 0


def test_an_unfinished_prompts_scores_are_not_delivered():
    loop = Loop(max_num_batched_tokens=4)
    sampling = RowSampling(prompt_logprobs=1)
    loop.add(make_wire(11, sampling=sampling, skip_reading_prefix_cache=True))
    loop.step()
    loop.step()
    assert loop.abort("r").prompt_logprobs is None


def test_each_delta_has_the_logprobs_its_request_asked_for():
    loop = Loop()
    for name, wanted in (("none", None), ("zero", 0), ("two", 2)):
        loop.add(make_wire(5, name, sampling=RowSampling(logprobs=wanted)))
    loop.drain()
    for delta in loop.deltas:
        wanted = {"none": None, "zero": 0, "two": 2}[delta.request_id]
        if wanted is None:
            assert delta.logprobs is None
        else:
            assert delta.logprobs.values.shape == (1, 1 + wanted)
            assert delta.logprobs.ids[0, 0] == delta.token_ids[0]


def test_tokens_carry_the_weights_they_were_sampled_with():
    loop = Loop(depth=1)
    wire = make_wire(5, max_tokens=4)
    loop.add(wire)
    loop.schedule()
    loop.scheduler.set_weights_version(3)
    loop.drain()
    loop.assert_truth(wire)
    assert [delta.weights_version for delta in loop.deltas] == [0, 3, 3, 3]
    loop.add(make_wire(wire.prompt_token_ids, "again"))
    loop.drain()
    assert loop.finals["again"].num_cached_tokens == 0


def test_every_block_comes_back():
    loop = Loop()
    wires = [make_wire(5 + i, f"r{i}", max_tokens=3) for i in range(20)]
    loop.add(*wires)
    loop.drain()
    pool = loop.cache.groups[0].pool
    assert pool.num_unowned == pool.total
    assert all(loop.tokens[wire.request_id] == truth(wire)[0] for wire in wires)
