"""Tool parsers by vLLM's names: they split an answer into content and tool calls.

To add one, write a generator over a `TextReader` that takes a `Calls` and yields Content, ToolStart
and ToolArguments (see `hermes.py`), and add it to `TOOL_PARSERS`. It must never raise; what is no
call is Content, verbatim. `tests/text/test_tool_parsers.py` checks every parser for chunking.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jengine.text.chat_parts import ChatPart
from jengine.text.text_reader import Parsing, TextReader
from jengine.text.tool_parsers.deepseek_v3 import parse_deepseek_v3
from jengine.text.tool_parsers.gemma4 import parse_gemma4
from jengine.text.tool_parsers.harmony import parse_harmony
from jengine.text.tool_parsers.hermes import parse_hermes
from jengine.text.tool_parsers.llama3_json import parse_llama3_json
from jengine.text.tool_parsers.mistral import mistral_call_id, parse_mistral
from jengine.text.tool_parsers.pythonic import parse_pythonic
from jengine.text.tool_parsers.qwen3_coder import parse_qwen3_coder
from jengine.text.tool_parsers.templated import parse_templated
from jengine.text.tool_parsers.tool_calls import Calls, random_call_id

ParseTools = Callable[[TextReader, Calls], Parsing[ChatPart, None]]


class ToolFormat(NamedTuple):
    """How a model family writes tool calls.

    `marks`: delimiters of calls that some tokenizers have no special token for. `new_id`: makes ids
    in the form that the chat templates accept. `with_reasoning`: the reasoning parser that this
    parser includes.
    """

    parse: ParseTools
    marks: tuple[str, ...] = ()
    new_id: Callable[[], str] = random_call_id
    with_reasoning: str | None = None


_CALL = ("<tool_call>", "</tool_call>")
_HERMES = ToolFormat(parse_hermes, _CALL)
_LLAMA3 = ToolFormat(parse_llama3_json)
_PYTHONIC = ToolFormat(parse_pythonic)
_QWEN3_CODER = ToolFormat(parse_qwen3_coder, _CALL)

TOOL_PARSERS = {
    "deepseek_v3": ToolFormat(parse_deepseek_v3),
    "deepseek_v31": ToolFormat(parse_deepseek_v3),
    "gemma4": ToolFormat(parse_gemma4),
    "hermes": _HERMES,
    "hf": ToolFormat(parse_templated, with_reasoning="hf"),
    "llama3_json": _LLAMA3,
    "llama4_json": _LLAMA3,
    "llama4_pythonic": _PYTHONIC,
    "mistral": ToolFormat(parse_mistral, new_id=mistral_call_id),
    "openai": ToolFormat(parse_harmony, with_reasoning="openai_gptoss"),
    "pythonic": _PYTHONIC,
    "qwen3_coder": _QWEN3_CODER,
    "qwen3_json": _HERMES,
    "qwen3_xml": _QWEN3_CODER,
}
