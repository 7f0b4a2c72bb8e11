"""Reasoning parsers by vLLM's names: they split an answer into reasoning and the rest.

To add one, write a generator over a `TextReader` that takes a `Given` (the prompt) and yields
Reasoning and Content (`thinking.py` is an example), and give it a line in `REASONING_PARSERS`. It
must never raise, whatever the text is. Tool calls pass through as Content, for a tool parser.
`tests/text/test_reasoning_parsers.py` checks every parser of the table for its chunking.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jengine.text.chat_parts import ChatPart, Given
from jengine.text.reasoning_parsers.gemma4 import parse_gemma4
from jengine.text.reasoning_parsers.thinking import parse_deepseek_r1, parse_qwen3
from jengine.text.text_reader import Parsing, TextReader
from jengine.text.tool_parsers.harmony import parse_harmony_without_calls
from jengine.text.tool_parsers.templated import parse_templated_without_calls

ParseReasoning = Callable[[TextReader, Given], Parsing[ChatPart, None]]


class ReasoningFormat(NamedTuple):
    """How a family of models marks its reasoning.

    `special_tokens`: its marks are special tokens, which must be kept in the text.
    """

    parse: ParseReasoning
    special_tokens: bool = True


REASONING_PARSERS = {
    "deepseek_r1": ReasoningFormat(parse_deepseek_r1),
    "gemma4": ReasoningFormat(parse_gemma4),
    "hf": ReasoningFormat(parse_templated_without_calls),
    "openai_gptoss": ReasoningFormat(parse_harmony_without_calls),
    "qwen3": ReasoningFormat(parse_qwen3),
}
