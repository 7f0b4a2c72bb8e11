"""Rows with a budget of reasoning: whatever the schedule, their answers are those of the rule."""

from __future__ import annotations

import re

import msgspec
from hypothesis import settings

from jengine.plan import RowSampling
from jengine.request import WireRequest
from jengine.structured_outputs import GrammarSpec
from jengine.thinking_budget import ReasoningMarks, ThinkingBudget
from tests.engine.scripted import scripted_tokens
from tests.grammar.letters import EOS, ids, regex
from tests.grammar.whole_text import must_follow
from tests.scheduler.masked_loop import any_schedule, followed, masked, searched, submitted
from tests.scheduler.scheduler_loop import VOCAB, Loop, make_wire
from tests.server.serving import letters

MARKS = ReasoningMarks(tuple(ids("(")), tuple(ids(")")), tuple(ids("well)")))


def thinking(
    name: str, tokens: int, prompt: str = "abcd(", grammar: GrammarSpec | None = None, **more: int
) -> WireRequest:
    """A request with a budget; most of its answers are nothing but reasoning."""
    sampling = RowSampling(
        thinking=ThinkingBudget(tokens, MARKS), grammar=grammar, stop_ids=[EOS],
        **({"logprobs": more.pop("logprobs")} if "logprobs" in more else {}),
    )  # fmt: skip
    prompt_ids = [*ids(prompt), *ids("xyz"[: len(name) % 3])]
    wire = make_wire(prompt_ids, name, sampling=sampling, **{"max_tokens": 20, **more})
    return msgspec.structs.replace(wire, eos_token_ids=[EOS])


def by_the_rule(wire: WireRequest) -> list[int]:
    """The answer, token by token."""
    text, budget = [*wire.prompt_token_ids], wire.sampling.thinking
    assert budget is not None
    while len(text) < len(wire.prompt_token_ids) + wire.max_tokens and text[-1] != EOS:
        forced = must_follow(text, budget)
        text.append(scripted_tokens(text, 1, VOCAB)[0] if forced is None else forced)
    return text[len(wire.prompt_token_ids) :]


def assert_the_rule(loop: Loop, *wires: WireRequest) -> None:
    for wire in wires:
        assert loop.tokens[wire.request_id] == by_the_rule(wire)


def test_reasoning_ends_when_its_budget_is_spent() -> None:
    loop, wires = followed(), [thinking(f"r{count}", count) for count in (0, 1, 7, 100)]
    free = make_wire(5, "free", max_tokens=20)
    loop.add(*wires, free)
    loop.drain()
    assert_the_rule(loop, *wires)
    loop.assert_truth(free)
    assert letters().decode(loop.tokens["r0"][:5]) == "well)"
    assert ids(")")[0] not in loop.tokens["r100"]


def test_the_forced_end_is_appended_without_sampling_or_sampled_for_its_log_probabilities() -> None:
    for more, appended in (({}, [6]), ({"logprobs": 0}, [])):
        loop, wire = followed(), thinking("a", 3, **more)
        loop.add(wire)
        loop.drain()
        assert_the_rule(loop, wire)
        known = [len(one.token_ids) for plan in submitted(loop) for one in plan.known]
        assert known[:1] == appended, "with the sampled token before them"


def test_masks_are_sent_only_where_they_change() -> None:
    loop, wire = followed(), thinking("a", 3, logprobs=0)
    loop.add(wire)
    loop.drain()
    found = [bool(masked(plan)) for plan in submitted(loop)]
    assert letters().decode(loop.tokens["a"][2:7]) == "well)"
    end = [True, True, True, False, True]  # one l is allowed as the other is
    assert found[:9] == [True, False, *end, True, False]


def test_a_grammar_begins_behind_the_forced_end() -> None:
    spec = msgspec.structs.replace(regex("[0-9]{3}x"), begins_after=tuple(ids(")")))
    loop = followed()
    loop.add(thinking("a", 4, grammar=spec), thinking("b", 0, grammar=spec, logprobs=0))
    loop.drain()
    for name, count in (("a", 4), ("b", 0)):
        answer = letters().decode(loop.tokens[name])
        assert re.fullmatch(r".*well\)[0-9]{3}x", answer), answer
        assert answer.index("well)") <= count, "letters of the answer may have no text"
        assert loop.finals[name].finish_reason == "stop"


@settings(deadline=None, max_examples=60)
@any_schedule
def test_any_schedule_follows_the_rule(
    turns: list[str], blocks: int, depth: int, wrong: int | None, on_device: bool
) -> None:
    loop = searched(blocks, depth, wrong, on_device)
    wires: list[WireRequest] = []
    for number, turn in enumerate(turns):
        if turn == "add":
            prompt = ("a(b", "ab", "a(b)", "a(b(")[number % 4]
            more = {"logprobs": 0} if number % 3 == 0 else {}
            wires.append(thinking(f"r{number}", number % 9, prompt, max_tokens=11, **more))
            loop.add(wires[-1])
        elif turn == "abort" and wires:
            loop.abort(wires[number % len(wires)].request_id)
        else:
            loop.step()
    loop.drain()
    for wire in wires:
        taken = loop.tokens[wire.request_id]
        assert taken == by_the_rule(wire)[: len(taken)]
        if loop.finals[wire.request_id].finish_reason in ("stop", "length"):
            assert taken == by_the_rule(wire)
