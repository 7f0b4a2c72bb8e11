"""JSON tool calls between tags: Hermes, Qwen 2.5 and Qwen 3.

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Oslo"}}
    </tool_call>

The closing tag ends a call wherever it occurs, even inside broken JSON. A call without a name is
Content, tags included.
"""

from __future__ import annotations

from jengine.text.chat_parts import ChatPart, Content
from jengine.text.text_reader import (
    Markers,
    Parsing,
    TextParser,
    TextReader,
    pass_rest,
    pass_until,
    take_expected,
    take_run,
)
from jengine.text.tool_parsers.json_text import SPACE, parse_call_object
from jengine.text.tool_parsers.tool_calls import Calls

_START, _END = "<tool_call>", "</tool_call>"


def parse_hermes(reader: TextReader, calls: Calls) -> Parsing[ChatPart, None]:
    """Alternate between Content and calls."""
    while (yield from pass_until(reader, Markers(_START), Content)):
        yield from _pass_call(reader, calls)


def _pass_call(reader: TextReader, calls: Calls) -> Parsing[ChatPart, None]:
    before = calls.count
    body: TextParser[ChatPart] = TextParser(lambda inner: _parse_body(inner, calls))
    while True:
        text, marker = reader.take_until(Markers(_END))
        yield from body.push(text)
        if marker or reader.ended:
            break
        yield None
    yield from body.finish()
    if calls.count == before:
        yield Content(marker)


def _parse_body(reader: TextReader, calls: Calls) -> Parsing[ChatPart, None]:
    opening = _START + (yield from take_run(reader, SPACE))
    if not (yield from take_expected(reader, "{")):
        yield Content(opening)
    elif (yield from parse_call_object(reader, calls, opening + "{")):
        return
    yield from pass_rest(reader, Content)
