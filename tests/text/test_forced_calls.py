"""Answers that a grammar made of tool calls alone, and where their reasoning ends."""

from __future__ import annotations

import pytest

from jengine.text.chat_parser import ForcedCalls, end_of_reasoning, reasoning_parser_names
from jengine.text.chat_parts import Content, Reasoning
from tests.text.parsing import calls, parse

LIST = '[{"name": "f", "parameters": {"a": [1, "]"]}}, {"name":"g","parameters":{}}]'


@pytest.mark.parametrize("pieces", [LIST, list(LIST), [f"\n{LIST}\n"]])
def test_a_list_of_calls(pieces: str | list[str]) -> None:
    parts = parse(pieces, forced=ForcedCalls())
    assert calls(parts) == [("f", '{"a": [1, "]"]}'), ("g", "{}")]
    assert len(parts) == 4, "and nothing else"


@pytest.mark.parametrize("text", ['{"a": 1}', ' {"a": 1} \n'])
def test_arguments_of_the_named_function(text: str) -> None:
    for pieces in (text, list(text)):
        assert calls(parse(pieces, forced=ForcedCalls("f"))) == [("f", '{"a": 1}')]


def test_what_is_cut_off_stays_cut_off() -> None:
    assert calls(parse('[{"name": "f", "parameters": {"a"', forced=ForcedCalls())) == [
        ("f", '{"a"')
    ]
    assert calls(parse('{"a', forced=ForcedCalls("f"))) == [("f", '{"a')]
    assert parse("", forced=ForcedCalls("f")) == []


def test_other_text_is_content() -> None:
    assert parse("sorry", forced=ForcedCalls()) == [Content("sorry")]


def test_one_call_is_kept_where_calls_are_not_parallel() -> None:
    assert calls(parse(LIST, forced=ForcedCalls(), parallel_tool_calls=False)) == [
        ("f", '{"a": [1, "]"]}')
    ]


def test_reasoning_comes_first() -> None:
    parts = parse('hm</think>\n{"a":1}', "qwen3", forced=ForcedCalls("f"))
    assert parts[0] == Reasoning("hm") and calls(parts) == [("f", '{"a":1}')]


def test_where_reasoning_ends() -> None:
    assert end_of_reasoning(None, "x") is None
    assert end_of_reasoning("qwen3", "<|im_start|>assistant\n") == "</think>"
    closed = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert end_of_reasoning("qwen3", closed) is None, "thinking is switched off"
    assert end_of_reasoning("gemma4", "<|turn>model\n<|channel>") == "<channel|>"
    assert end_of_reasoning("gemma4", "<|turn>model\n") is None
    assert end_of_reasoning("openai_gptoss", "") == "<|channel|>final<|message|>"
    for name in reasoning_parser_names():
        end_of_reasoning(name, "")
