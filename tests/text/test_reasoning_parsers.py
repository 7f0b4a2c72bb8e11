"""Reasoning parsers: formats by example, any chunking, hostile text, linear time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jengine.text.reasoning_parsers import REASONING_PARSERS
from tests.text.parsing import content, growth, hostile, parse, pieces_of, reasoning

THINKING = ["<think>", "</think>", "<tool_call>", "</tool_call>", "answer", "\n\n"]
GEMMA4 = ["<|channel>", "thought\n", "<channel|>", "<|tool_call>", "answer"]
HARMONY = [
    "<|channel|>analysis",
    "<|channel|>final",
    "<|channel|>commentary to=functions.f",
    "<|message|>",
    "<|end|>",
    "<|start|>assistant",
    "text",
]
WORDS = {
    "deepseek_r1": THINKING,
    "gemma4": GEMMA4,
    "hf": THINKING,
    "openai_gptoss": HARMONY,
    "qwen3": THINKING,
}


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
@settings(max_examples=40, deadline=None)
@given(data=st.data(), cuts=st.lists(st.integers(0, 200)))
def test_pieces_do_not_change_the_parts(name: str, data: st.DataObject, cuts: list[int]) -> None:
    text = data.draw(hostile(WORDS[name]))
    whole = parse(text, name)
    assert parse(pieces_of(text, cuts), name) == whole
    assert parse(list(text), name) == whole


@pytest.mark.parametrize("name", REASONING_PARSERS)
def test_time_grows_as_the_text_does(name: str) -> None:
    for unit in (*WORDS[name][:3], WORDS[name][0][:-1], "x"):
        assert growth(lambda text: parse(text, name), unit, length=5000) < 25
        assert growth(lambda text: parse(list(text), name), unit) < 25


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<|channel>thought\nI look.<channel|>Oslo.", ("I look.", "Oslo.")),
        ("Oslo.", ("", "Oslo.")),
        ("Oslo.<channel|>", ("", "Oslo.")),
        ("<|channel>thought\nI l", ("I l", "")),
        ("<|channel>I look.<|tool_call>x", ("I look.", "<|tool_call>x")),
        ("A<|channel>b<channel|>C", ("b", "AC")),
    ],
)
def test_gemma4(text: str, expected: tuple[str, str]) -> None:
    assert split(text, "gemma4") == expected


def test_gemma4s_prompt_may_have_opened_the_channel() -> None:
    assert split("I look.<channel|>Oslo.", "gemma4", "<|turn>model\n<|channel>thought\n") == (
        "I look.",
        "Oslo.",
    )
    closed = "<|turn>model\n<|channel>thought\n<channel|>"
    assert split("Oslo.", "gemma4", closed) == ("", "Oslo.")
    assert split("Oslo.", "gemma4", f"<|channel>{closed}<|turn>model\n") == ("", "Oslo.")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
            ("Hm.", "Yes."),
        ),
        ("<|channel|>analysis<|message|>Hm", ("Hm", "")),
        ("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant", ("", "I look.")),
        ("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}", ("", "")),
        ("<|channel|>analysis to=python<|message|>1 + 1<|call|>", ("1 + 1", "")),
        ("<|channel|>commentary to=browser.find<|message|>x<|call|>", ("", "")),
        (
            "<|channel|>analysis<|message|>a<|end|><|channel|>analysis<|message|>b<|end|>",
            ("a\nb", ""),
        ),
        ("No channel at all.", ("", "No channel at all.")),
        ("<|channel|>fin", ("", "")),
    ],
)
def test_gpt_oss(text: str, expected: tuple[str, str]) -> None:
    assert split(text, "openai_gptoss") == expected
