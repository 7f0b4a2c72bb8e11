"""Reasoning tokens are counted by the ids of the marks, in pieces as at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jengine.text.reasoning_parsers import REASONING_PARSERS
from jengine.text.reasoning_tokens import reasoning_tokens

MARKS = {1: "<eos>", 10: "<think>", 11: "</think>", 12: "<tool_call>"}
OPEN, CLOSED = "<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n"


class Tokens(SimpleNamespace):
    """As much of a tokenizer as is needed."""

    __hash__ = object.__hash__


def tokenizer(added: dict[int, str]) -> Any:
    return Tokens(added_tokens=added, special_ids=frozenset({1}))


@pytest.mark.parametrize(
    ("name", "prompt", "ids", "expected"),
    [
        ("qwen3", OPEN, [10, 5, 6, 11, 7, 8, 1], 2),
        ("qwen3", OPEN, [5, 6, 11, 7, 5, 11, 7], 2),  # the prompt, or nothing, has opened it
        ("qwen3", OPEN, [10, 5, 12, 7, 11], 1),  # a call ends it
        ("qwen3", OPEN, [10, 5, 6, 1], 2),  # cut off by the end of the answer
        ("qwen3", CLOSED, [5, 6, 7, 1], 0),
        ("deepseek_r1", OPEN, [10, 10, 5, 12, 6, 11, 7], 3),
    ],
)
def test_tokens_between_the_marks_count(
    name: str, prompt: str, ids: list[int], expected: int
) -> None:
    one = tokenizer(MARKS)
    for size in (1, 2, len(ids)):
        counter = reasoning_tokens(one, name, prompt)
        assert counter is not None
        for start in range(0, len(ids), size):
            counter.push(ids[start : start + size])
        assert counter.count == expected


def test_where_marks_are_no_tokens_ids_do_not_tell() -> None:
    assert reasoning_tokens(tokenizer({10: "<think>"}), "qwen3", OPEN) is None
    assert reasoning_tokens(tokenizer({10: "<think>", 11: "</think>"}), "qwen3", OPEN) is None
    assert reasoning_tokens(tokenizer({10: "<think>", 11: "</think>"}), "deepseek_r1", OPEN)
    for name, format in REASONING_PARSERS.items():
        if format.marks is None:
            assert reasoning_tokens(tokenizer(MARKS), name, OPEN) is None
