"""Reasoning parsers by vLLM's names: they split an answer into reasoning and the rest.

To add one, write a generator over a `TextReader` that takes an `AnswerContext` and yields Reasoning
and Content (see `thinking.py`), and add it to `REASONING_PARSERS`. It must never raise. Tool calls
pass as Content, for a tool parser. `tests/text/test_reasoning_parsers.py` checks every parser for
chunking.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jengine.text.chat_parts import AnswerContext, ChatPart
from jengine.text.reasoning_parsers.gemma4 import end_of_channel, parse_gemma4
from jengine.text.reasoning_parsers.thinking import (
    QWEN3,
    THINK_END,
    THINK_START,
    end_of_thinking,
    parse_deepseek_r1,
    parse_qwen3,
)
from jengine.text.text_reader import Parsing, TextReader
from jengine.text.tool_parsers.harmony import parse_harmony_without_calls
from jengine.text.tool_parsers.templated import parse_templated_without_calls

ParseReasoning = Callable[[TextReader, AnswerContext], Parsing[ChatPart, None]]


class Marks(NamedTuple):
    """Reasoning delimiters: an answer that starts inside reasoning may repeat `start`; any of
    `ends` ends it."""

    start: str
    ends: tuple[str, ...]


class ReasoningFormat(NamedTuple):
    """How a model family marks reasoning.

    `end(prompt)`: text that ends the reasoning of an answer, after which a grammar starts; None if
    the answer may have no reasoning. `marks`: the delimiters, for formats where reasoning is the
    text between them.
    """

    parse: ParseReasoning
    end: Callable[[str], str | None]
    marks: Marks | None = None


# gpt-oss's header of the final message.
HARMONY_FINAL = "<|channel|>final<|message|>"


def unknown_end(prompt: str) -> None:
    """None: response templates do not say how reasoning ends, so grammars start at the first
    token."""


REASONING_PARSERS = {
    "deepseek_r1": ReasoningFormat(
        parse_deepseek_r1, end_of_thinking, marks=Marks(THINK_START, (THINK_END,))
    ),
    "gemma4": ReasoningFormat(parse_gemma4, end_of_channel),
    "hf": ReasoningFormat(parse_templated_without_calls, unknown_end),
    "openai_gptoss": ReasoningFormat(parse_harmony_without_calls, lambda prompt: HARMONY_FINAL),
    "qwen3": ReasoningFormat(
        parse_qwen3, end_of_thinking, marks=Marks(THINK_START, (THINK_END, QWEN3.call or ""))
    ),
}
