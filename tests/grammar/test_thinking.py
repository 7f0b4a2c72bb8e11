"""Budgets of reasoning against a plain reading of the whole text, alone and with a grammar."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jengine.errors import RequestError
from jengine.grammar.mask_filler import MaskFiller
from jengine.grammar.matcher import FailedMatcher
from jengine.grammar.thinking import BudgetFollower
from jengine.outputs import Refusal
from jengine.plan import RowSampling
from jengine.thinking_budget import (
    ReasoningMarks,
    ThinkingBudget,
    budget_with,
    checked_budget,
    occurs,
)
from tests.grammar.letters import EOS, VOCAB, WORDS, compiler, ids, matcher, regex
from tests.grammar.whole_text import must_follow

FEW = st.integers(0, 3)  # so few tokens that marks occur, and overlap
MARK = st.lists(FEW, min_size=1, max_size=3).map(tuple)
FILLER = MaskFiller(compiler(), WORDS)
ALL = set(range(VOCAB))


def marks_of(start: str, end: str, forced: str | None = None) -> ReasoningMarks:
    return ReasoningMarks(*(tuple(ids(one)) for one in (start, end, forced or end)))


BRACKETS = marks_of("(", ")")


def allowed(one: BudgetFollower) -> set[int]:
    bits = np.unpackbits(FILLER.filled([one]).view(np.uint8), bitorder="little")[:VOCAB]
    return set(np.flatnonzero(bits).tolist())


@st.composite
def budgets(draw: st.DrawFn) -> ThinkingBudget:
    end, start = draw(MARK), draw(MARK)
    forced = (*draw(st.lists(FEW, max_size=3)), *end)
    assume(not occurs(start, forced))
    return ThinkingBudget(draw(st.integers(0, 6)), ReasoningMarks(start, end, forced))


@given(budgets(), st.lists(FEW, max_size=12), st.lists(FEW, max_size=12), st.data())
def test_any_text_against_reading_it_whole(
    budget: ThinkingBudget, prompt: list[int], answer: list[int], data: st.DataObject
) -> None:
    one, text = BudgetFollower(budget, prompt), [*prompt]
    for token in answer:
        wanted = must_follow(text, budget)
        assert allowed(one) == (ALL if wanted is None else {wanted})
        ahead = [*text]
        while (following := must_follow(ahead, budget)) is not None:
            ahead.append(following)
        assert one.forced() == ahead[len(text) :], "up to the end of reasoning"
        if data.draw(st.booleans()):
            one = one.copy()
        elif data.draw(st.booleans()):
            one = BudgetFollower(budget, text)  # as after a preemption
        other = one.copy()
        assert other.advance(answer) and one.advance([token])
        text.append(token)


@given(budgets(), st.lists(FEW, max_size=12))
def test_forced_tokens_end_reasoning(budget: ThinkingBudget, prompt: list[int]) -> None:
    one = BudgetFollower(budget, prompt)
    forced = one.forced()
    assert one.advance(forced) and one.forced() == []
    assert len(forced) <= len(budget.marks.forced_end)
    if forced:
        assert must_follow([*prompt, *forced], budget) is None


@pytest.mark.parametrize(
    ("prompt", "answer", "count", "following"),
    [
        ("a(", "xyz", 3, ")"),
        ("a(", "xy", 3, None),
        ("a(xy", "z", 3, ")"),  # tokens of the prompt count
        ("a(", "", 0, ")"),
        ("a", "xyzxyz", 3, None),  # the answer does not reason
        ("a(b)", "xyzxyz", 3, None),  # nor any longer
        ("a(b)", "x(yzx", 3, ")"),  # it does so again
        ("a(", "x(yz", 3, None),  # and anew
        ("a(", "x)yz", 3, None),
    ],
)
def test_where_reasoning_ends(prompt: str, answer: str, count: int, following: str | None) -> None:
    one = BudgetFollower(ThinkingBudget(count, BRACKETS), ids(prompt))
    assert one.advance(ids(answer))
    assert allowed(one) == (ALL if following is None else set(ids(following)))


def test_words_before_the_end_go_on_where_the_answer_has_begun_with_them() -> None:
    marks = marks_of("(", ")", "so) well")
    one = BudgetFollower(ThinkingBudget(3, marks), ids("("))
    assert one.advance(ids("abc")) and one.forced() == ids("so)"), "reasoning has ended there"
    one = BudgetFollower(ThinkingBudget(3, marks), ids("("))
    assert one.advance(ids("abs")) and one.forced() == ids("o)")


def test_an_answer_that_has_ended_goes_on_with_nothing() -> None:
    one = BudgetFollower(ThinkingBudget(0, BRACKETS), ids("("), stop_ids=[EOS])
    assert one.advance([EOS]) and one.is_terminated
    assert one.forced() == [] and allowed(one) == ALL
    free = BudgetFollower(ThinkingBudget(0, BRACKETS), [*ids("("), EOS], stop_ids=[EOS])
    assert not free.is_terminated, "prompts hold such tokens, too"


def test_a_grammar_begins_behind_the_forced_end() -> None:
    spec = msgspec.structs.replace(regex("[0-9]{2}"), begins_after=tuple(ids(")")))
    one = BudgetFollower(ThinkingBudget(2, BRACKETS), ids("("), (EOS,), matcher(spec))
    assert one.advance(ids("ab")) and allowed(one) == set(ids(")"))
    assert one.advance(ids(")")) and allowed(one) == set(ids("0123456789"))
    twin = one.copy()
    assert one.advance(ids("12")) and allowed(one) == {EOS}
    assert one.advance([EOS]) and one.is_terminated and not twin.is_terminated
    assert not twin.advance(ids("x")) and twin.refusal and "refuses" in twin.refusal.text


def test_a_grammar_that_begins_within_the_forced_end_decides_from_there() -> None:
    marks = marks_of("(", ")", "so)")
    spec = msgspec.structs.replace(regex("[0-9]{2}"), begins_after=tuple(ids("s")))
    one = BudgetFollower(ThinkingBudget(0, marks), ids("("), (EOS,), matcher(spec))
    assert one.forced() == ids("s")
    assert one.advance(ids("s")) and allowed(one) == set(ids("0123456789"))


def test_a_grammar_that_decides_says_where_reasoning_may_end() -> None:
    one = BudgetFollower(
        ThinkingBudget(1, BRACKETS), ids("("), (EOS,), matcher(regex("[a-z]{2}[)a-z]+[0-9]"))
    )
    assert allowed(one) == set(ids("abcdefghijklmnopqrstuvwxyz"))
    assert one.advance(ids("a")) and len(allowed(one)) == 26, "it is spent, and must go on"
    assert one.advance(ids("b")) and allowed(one) == set(ids(")"))
    assert one.forced() == [], "the grammar has a choice"
    assert one.advance(ids(")")) and len(allowed(one)) == 26 + 1 + 10


def test_a_grammar_that_was_not_compiled_still_ends_the_request() -> None:
    broken = Refusal("broken", by_request=True)
    one = BudgetFollower(ThinkingBudget(0, BRACKETS), ids("("), (), FailedMatcher(broken))
    assert not one.advance(ids("a")) and one.refusal == broken and one.forced() == []


def test_a_budget_travels_as_plain_data() -> None:
    sampling = RowSampling(thinking=ThinkingBudget(5, marks_of("(", ")", "so)")), stop_ids=[EOS])
    data = msgspec.msgpack.encode(sampling)
    assert msgspec.msgpack.decode(data, type=RowSampling) == sampling
    assert sampling.is_masked and sampling.has_sampler_state and not sampling.adjusts_beyond_mask


@pytest.mark.parametrize("value", [-2, 1.0, True, "5", [1], float("nan")])
def test_values_that_are_no_budget(value: object) -> None:
    with pytest.raises(RequestError, match="must be a non-negative integer or -1 for unlimited"):
        checked_budget("thinking_token_budget", value)


def test_values_of_a_budget() -> None:
    given = (-1, 0, 7, 10**30)
    assert [checked_budget("", value) for value in given] == [None, 0, 7, 2**31 - 1]
    assert budget_with(4, BRACKETS) == ThinkingBudget(4, BRACKETS)
    with pytest.raises(RequestError, match="set but reasoning_config is not configured"):
        budget_with(0, None)
