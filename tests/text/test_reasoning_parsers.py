"""Reasoning parsers: formats by example, any chunking, hostile text, linear time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jengine.text.reasoning_parsers import REASONING_PARSERS
from tests.text.parsing import content, growth, hostile, parse, pieces_of, reasoning

WORDS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "answer", "\n\n"]


def split(text: str, name: str, prompt: str = "") -> tuple[str, str]:
    parts = parse(text, name, prompt=prompt)
    assert parse(list(text), name, prompt=prompt) == parts
    return reasoning(parts), content(parts)


@pytest.mark.parametrize("name", ["deepseek_r1", "qwen3"])
def test_tags_split_an_answer_and_blank_lines_stay(name: str) -> None:
    assert split("<think>\nhm\n</think>\n\nYes.", name) == ("\nhm\n", "\n\nYes.")
    assert split("hm</think>Yes.", name) == ("hm", "Yes.")
    assert split("no tag at all", name) == ("no tag at all", "")
    assert split("<think>cut o", name) == ("cut o", "")
    assert split("a </thin", name) == ("a </thin", "")


@pytest.mark.parametrize("name", ["deepseek_r1", "qwen3"])
@pytest.mark.parametrize(
    ("prompt", "is_over"),
    [
        ("<|im_start|>assistant\n", False),
        ("<|im_start|>assistant\n<think>\n", False),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", True),
        ("<|im_start|>assistant\n<think>\nhm\n</think>\n\nIt is", True),
        ("<|im_start|>assistant\n<think>a</think>b<|im_end|>\n<|im_start|>assistant\n", False),
        ("<｜User｜>hi<｜Assistant｜><think>\n", False),
        ("unknown: <think>a</think>", True),
        ("unknown: <think>a</think>b\nunknown: ", False),
    ],
)
def test_the_prompts_last_turn_may_have_closed_the_reasoning(
    name: str, prompt: str, is_over: bool
) -> None:
    assert split("Yes.", name, prompt) == (("", "Yes.") if is_over else ("Yes.", ""))


def test_qwen3_drops_repeated_end_tags_and_deepseek_keeps_them() -> None:
    assert split("a</think>b</think>c", "qwen3") == ("a", "bc")
    assert split("a</think>b</think>c", "deepseek_r1") == ("a", "b</think>c")


def test_a_tool_call_ends_qwen3s_reasoning() -> None:
    assert split("hm\n<tool_call>x", "qwen3") == ("hm\n", "<tool_call>x")


@pytest.mark.parametrize("name", REASONING_PARSERS)
@settings(max_examples=60, deadline=None)
@given(text=hostile(WORDS), cuts=st.lists(st.integers(0, 200)))
def test_pieces_do_not_change_the_parts(name: str, text: str, cuts: list[int]) -> None:
    whole = parse(text, name)
    assert parse(pieces_of(text, cuts), name) == whole
    assert parse(list(text), name) == whole


@pytest.mark.parametrize("name", REASONING_PARSERS)
@pytest.mark.parametrize("unit", ["<think>", "<think", "</think>", "x", "\n", "<"])
def test_time_grows_as_the_text_does(name: str, unit: str) -> None:
    assert growth(lambda text: parse(text, name), unit, length=5000) < 25
    assert growth(lambda text: parse(list(text), name), unit) < 25
