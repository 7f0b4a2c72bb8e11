"""Tool parsers by vLLM's names: they split an answer into content and tool calls.

To add one, write a generator over a `TextReader` that takes a `Calls` and yields Content,
ToolStart and ToolArguments (`hermes.py` is an example), and give it a line in `TOOL_PARSERS`. It
must never raise, whatever the text is; what is not a call is Content, as the model wrote it.
`tests/text/test_tool_parsers.py` checks every parser of the table for its chunking.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jengine.text.chat_parts import ChatPart
from jengine.text.text_reader import Parsing, TextReader
from jengine.text.tool_parsers.calls import Calls
from jengine.text.tool_parsers.hermes import parse_hermes

ParseTools = Callable[[TextReader, Calls], Parsing[ChatPart, None]]


class ToolFormat(NamedTuple):
    """How a family of models writes tool calls.

    `special_tokens`: its marks are special tokens, which must be kept in the text.
    """

    parse: ParseTools
    special_tokens: bool = False


TOOL_PARSERS = {
    "hermes": ToolFormat(parse_hermes, special_tokens=True),
}
