"""What holds for every tool parser: any chunking, hostile text, linear time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jengine.text.chat_parts import Content
from jengine.text.tool_parsers import TOOL_PARSERS
from tests.text.parsing import growth, hostile, parse, pieces_of

_HERMES = ["<tool_call>", "</tool_call>", '{"name": "f", "arguments": {"a": 1}}', '"name": "']
_LLAMA3 = ["<|python_tag|>", '{"name": "f", "parameters": {"a": 1}}', "; ", '{"name": ']
_PYTHONIC = ["[f(a='", "[", "f(a=1)", "]", "<|python_start|>", "<|python_end|>", "(", "x={'a': "]
_CODER = [
    "<function=f>",
    "<tool_call>",
    "</tool_call>",
    "</function>",
    "<parameter=a>",
    "<parameter=s>",
    "</parameter>",
]
_DEEPSEEK = [
    "<｜tool▁call▁begin｜>",
    "<｜tool▁calls▁begin｜>",
    "function<｜tool▁sep｜>f\n```json\n",
    '{"a": 1}',
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
]
_MISTRAL = ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "f", '{"name": "f", "arguments": {}}', "["]
_GEMMA4 = [
    "<|tool_call>",
    "<tool_call|>",
    "call:f{",
    '<|"|>',
    "a:",
    "s:",
    "b:[{c:",
    "call:f(",
]
_HARMONY = [
    "<|channel|>final",
    "<|channel|>analysis",
    "<|channel|>commentary to=functions.f",
    "<|message|>",
    "<|end|>",
    "<|start|>assistant",
    "<|call|>",
]
WORDS = {
    "gemma4": _GEMMA4,
    "hf": [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        '{"function": {"name": "f", "arguments": {}}}',
    ],
    "openai": _HARMONY,
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v31": _DEEPSEEK,
    "hermes": _HERMES,
    "llama3_json": _LLAMA3,
    "llama4_json": _LLAMA3,
    "llama4_pythonic": _PYTHONIC,
    "mistral": _MISTRAL,
    "pythonic": _PYTHONIC,
    "qwen3_coder": _CODER,
    "qwen3_json": _HERMES,
    "qwen3_xml": _CODER,
}
# One name per parser: the others are the same under another name.
DISTINCT = {format_.parse: name for name, format_ in reversed(TOOL_PARSERS.items())}.values()
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {"properties": {"a": {"type": "integer"}, "s": {"type": "string"}}},
        },
    }
]


def test_every_parser_has_words_to_be_tested_with() -> None:
    assert WORDS.keys() == TOOL_PARSERS.keys()


@pytest.mark.parametrize("name", DISTINCT)
def test_plain_text_is_content(name: str) -> None:
    assert parse("Hello, world.\n", tool_parser=name) == [Content("Hello, world.\n")]
    assert parse("", tool_parser=name) == []


@pytest.mark.parametrize("name", DISTINCT)
@settings(max_examples=40, deadline=None)
@given(data=st.data(), cuts=st.lists(st.integers(0, 300)))
def test_pieces_do_not_change_the_parts(name: str, data: st.DataObject, cuts: list[int]) -> None:
    text = data.draw(hostile(WORDS[name]))
    whole = parse(text, tool_parser=name, tools=TOOLS)
    assert parse(pieces_of(text, cuts), tool_parser=name, tools=TOOLS) == whole
    assert parse(list(text), tool_parser=name, tools=TOOLS) == whole


def check_growth(name: str, unit: str, start: str) -> None:
    def whole(text: str) -> object:
        return parse(text, tool_parser=name, tools=TOOLS)

    def by_character(text: str) -> object:
        return parse(list(text), tool_parser=name, tools=TOOLS)

    where = f"{start!r}, then {unit!r} many times"
    assert growth(whole, unit, start, length=5000) < 25, where
    assert growth(by_character, unit, start) < 25, f"{where}, by character"


@pytest.mark.slow
@pytest.mark.parametrize("name", DISTINCT)
def test_time_grows_as_the_text_does(name: str) -> None:
    opening = WORDS[name][0]
    for unit, start in ((opening, ""), (opening[:-1], ""), ("x", opening), ('"', opening)):
        check_growth(name, unit, start)


@pytest.mark.slow
@pytest.mark.parametrize("name", DISTINCT)
def test_time_grows_as_any_text_does(name: str) -> None:
    parts = {part for word in WORDS[name] for part in (word, word[:-1] or word)}
    for unit in [*parts, *"x\n[{(\"'\\,"]:
        for start in ("", WORDS[name][0]):
            check_growth(name, unit, start)
