"""One answer in its grammar: what may follow, where it may end, when it begins."""

from __future__ import annotations

import json
import random

import msgspec
import numpy as np
import pytest

from jengine.grammar.mask_filler import Follower, MaskFiller, leaves_no_choice
from jengine.grammar.matcher import ANY_TOKEN, FailedMatcher, Matcher
from jengine.structured_outputs import StructuredOutputsParams
from tests.grammar.letters import EOS, VOCAB, WORDS, allowed, compiler, ids, matcher, regex
from tests.server.serving import letters


def test_a_choice_is_followed_to_its_end() -> None:
    one = matcher(StructuredOutputsParams(choice=["yes", "yet"]).spec())
    assert allowed(one) == "y"
    assert one.advance(ids("ye")) and allowed(one) == "st"
    assert one.advance(ids("s")) and allowed(one) == "$"
    assert not one.is_terminated
    assert one.advance([EOS]) and one.is_terminated
    assert len(allowed(one)) == VOCAB, "after its end anything may follow"


def test_the_end_is_allowed_only_where_the_grammar_may_end() -> None:
    one = matcher(regex("ab?"))
    assert allowed(one) == "a"
    assert one.advance(ids("a")) and allowed(one) == "$b"


def test_a_refused_token_says_why_and_stays_refused() -> None:
    one = matcher(regex("a"))
    assert not one.advance(ids("b"))
    assert one.refusal is not None and not one.refusal.by_request, "masks leave such tokens out"
    assert "refuses token" in one.refusal.text
    assert not one.advance(ids("a")), "once refused, an answer cannot be right any more"
    assert len(allowed(one)) == VOCAB


def test_stop_ids_are_allowed_exactly_where_the_answer_may_end() -> None:
    (stop,) = ids("!")
    one = matcher(regex("[a!]{2}x?"), (stop,))
    assert allowed(one) == "a", "the grammar takes it here, but the answer may not end"
    assert one.advance(ids("aa")) and allowed(one) == "$!x"
    assert one.advance([stop]) and one.is_terminated
    only = matcher(regex("!!"), (stop,))
    assert allowed(only) == "!", "nothing else is allowed"


def test_with_ignore_eos_the_answer_goes_on_after_the_grammar() -> None:
    one = matcher(regex("a"), ())
    assert one.advance([*ids("a"), EOS]) and one.is_terminated
    assert len(allowed(one)) == VOCAB and one.advance(ids("zz"))


def test_a_grammar_begins_after_the_end_of_reasoning() -> None:
    spec = msgspec.structs.replace(regex("a"), begins_after=tuple(ids("</t>")))
    one = matcher(spec)
    assert len(allowed(one)) == VOCAB and not one.has_begun
    assert one.advance(ids("hm </t")) and len(allowed(one)) == VOCAB
    assert one.advance(ids(">")) and one.has_begun
    assert allowed(one) == "a"


def test_negative_tokens_are_not_the_grammars_business() -> None:
    one = matcher(regex("a"))
    assert one.advance([-1]) and allowed(one) == "a"


def test_forced_tokens() -> None:
    one = matcher(regex("ab(c|d)"))
    assert one.forced() == ids("ab")
    assert one.advance(ids("ab")) and one.forced() == []


def test_random_answers_of_a_schema_are_valid() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 40},
                       "k": {"enum": ["x", "y"]}},
        "required": ["n", "k"],
        "additionalProperties": False,
    }  # fmt: skip
    spec = StructuredOutputsParams(json=schema, disable_any_whitespace=True).spec()
    for seed in range(8):
        one, answer, draw = matcher(spec), [], random.Random(seed)
        mask = np.empty(4, np.int32)
        while not one.is_terminated:
            one.fill(mask)
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCAB]
            answer.append(draw.choice(np.flatnonzero(bits).tolist()))
            assert one.advance(answer[-1:]), one.refusal
        value = json.loads(letters().decode(answer))
        assert 3 <= value["n"] <= 40 and value["k"] in "xy" and len(value) == 2


def test_masks_of_many_are_those_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few are computed one by one, many in one call."""
    monkeypatch.setattr("jengine.grammar.mask_filler.LEAST_PROCESSORS", 1)
    made = compiler()
    filler = MaskFiller(made, WORDS)
    texts = ["[a-c]{4}", "x|yz", "ab", "[0-9]+", "q[a-z]*"] * 4
    matchers: list[Follower] = [matcher(regex(text)) for text in texts]
    begins = StructuredOutputsParams(regex="a").spec()
    matchers += [
        matcher(msgspec.structs.replace(begins, begins_after=(5, 6))),  # all tokens, so far
        FailedMatcher("no grammar"),
    ]
    for count in (len(matchers), 3):
        masks = filler.filled(matchers[:count])
        for mask, one in zip(masks, matchers, strict=False):
            alone = np.full(len(mask), ANY_TOKEN)
            if isinstance(one, Matcher):
                one.fill(alone)
            assert np.array_equal(mask, alone)
    forced = leaves_no_choice(filler.filled(matchers)).tolist()
    assert forced == [text[0] in "aq" for text in texts] + [False, False]
