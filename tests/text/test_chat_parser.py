"""The whole way: reasoning first, then tool calls, and what the options do."""

from __future__ import annotations

import pytest

from jengine.errors import ConfigError
from jengine.text.chat_parser import check_parser_names, needs_special_tokens
from jengine.text.chat_parts import Content, Reasoning, ToolArguments, ToolStart, merge_parts
from jengine.text.tool_parsers.tool_calls import random_call_id
from tests.text.parsing import parse

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def test_without_parsers_everything_is_content() -> None:
    assert parse(f"<think>a</think>{CALL}") == [Content(f"<think>a</think>{CALL}")]
    assert parse("\n") == [Content("\n")]


def test_reasoning_is_split_off_before_tool_calls_are_looked_for() -> None:
    text = f"<think>I write {CALL.upper()}</think>\n\n{CALL}"
    assert parse(text, "deepseek_r1", "hermes") == [
        Reasoning(f"I write {CALL.upper()}"),
        ToolStart(0, "a", "f"),
        ToolArguments(0, '{"a": 1}'),
    ]


def test_a_call_in_qwen3s_reasoning_ends_it() -> None:
    assert [type(part) for part in parse(f"hm\n{CALL}", "qwen3", "hermes")] == [
        Reasoning,
        ToolStart,
        ToolArguments,
    ]


def test_blank_text_around_calls_is_dropped_and_other_text_is_kept() -> None:
    assert parse(f"\n\n{CALL}\n{CALL}\n", None, "hermes") == parse(CALL + CALL, None, "hermes")
    assert parse(f" Hi. \n{CALL}\n", None, "hermes")[0] == Content(" Hi. \n")
    assert parse(f"{CALL}\nDone.\n", None, "hermes")[-1] == Content("\nDone.\n")
    assert parse(" \n", None, "hermes") == [Content(" \n")]


def test_only_the_first_call_is_kept_if_parallel_calls_are_not_wanted() -> None:
    parts = parse(CALL + "\n" + CALL, None, "hermes", parallel_tool_calls=False)
    assert parts == parse(CALL, None, "hermes")


def test_ids_are_different_and_look_as_vllms_do() -> None:
    assert random_call_id() != random_call_id()
    assert random_call_id().startswith("chatcmpl-tool-")


def test_unknown_names_are_refused_with_those_that_are_known() -> None:
    check_parser_names("qwen3", "hermes")
    check_parser_names(None, None)
    with pytest.raises(ConfigError, match=r"tool_call_parser is 'herms'.*'hermes'.*Give one of: "):
        check_parser_names(None, "herms")
    with pytest.raises(ConfigError, match=r"reasoning_parser is 'x'.*deepseek_r1"):
        check_parser_names("x", None)


def test_special_tokens_are_kept_only_for_parsers_that_read_them() -> None:
    ends = {"<|im_end|>"}
    assert not needs_special_tokens("qwen3", "hermes", ends), "Qwen's marks are plain tokens"
    assert needs_special_tokens("qwen3", "hermes", {*ends, "</think>"})
    assert needs_special_tokens("qwen3", "hermes", {*ends, "<tool_call>"})
    assert needs_special_tokens(None, "llama3_json", ends)
    assert not needs_special_tokens(None, None, ends)


def test_neighbours_of_one_kind_are_joined() -> None:
    start = ToolStart(0, "a", "f")
    assert merge_parts(
        [Content("a"), Content(""), Content("b"), start, ToolArguments(0, ""), Reasoning("c")]
    ) == [Content("ab"), start, Reasoning("c")]
    assert merge_parts([ToolArguments(0, "a"), ToolArguments(1, "b")]) == [
        ToolArguments(0, "a"),
        ToolArguments(1, "b"),
    ]
