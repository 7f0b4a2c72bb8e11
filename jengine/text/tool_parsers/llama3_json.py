"""Bare JSON tool calls: Llama 3.1 and later.

    <|python_tag|>{"name": "get_weather", "parameters": {"city": "Oslo"}}; {...}

The tag is optional. Objects with a name and arguments or parameters are calls; everything else is
Content.
"""

from __future__ import annotations

import re

from jengine.text.chat_parts import ChatPart, Content
from jengine.text.text_reader import (
    Markers,
    Parsing,
    TextReader,
    goes_on_with,
    next_character,
    pass_until,
    take_expected,
    take_run,
)
from jengine.text.tool_parsers.json_text import SPACE, parse_call_object
from jengine.text.tool_parsers.tool_calls import Calls

_TAG = "<|python_tag|>"
_OPENINGS = Markers(_TAG, "{")
_BETWEEN = re.compile(r"[\s;,]+")


def parse_llama3_json(reader: TextReader, calls: Calls) -> Parsing[ChatPart, None]:
    """Alternate between Content and calls."""
    while opening := (yield from pass_until(reader, _OPENINGS, Content)):
        if opening == _TAG:
            opening += yield from take_run(reader, SPACE)
            if not (yield from take_expected(reader, "{")):
                yield Content(opening)
                continue
            opening += "{"
        if (yield from parse_call_object(reader, calls, opening, needs_arguments=True)):
            yield from _drop_separator(reader)


def _drop_separator(reader: TextReader) -> Parsing[ChatPart, None]:
    """Drop separators between calls; they are Content if no call follows."""
    between = yield from take_run(reader, _BETWEEN)
    character = yield from next_character(reader)
    if character not in ("", "{") and not (yield from goes_on_with(reader, _TAG)):
        yield Content(between)
