"""Tool calls as a Python list of function calls: Llama 3.2, Llama 4, ToolACE.

    [get_weather(city='Oslo', days=3), get_time(zones=["CET"])]

The list must begin the answer. Arguments are keywords with literal values, translated to JSON
without evaluation. A call is reported when complete; anything else is Content.
"""

from __future__ import annotations

import re

from jengine.text.chat_parts import ChatPart, Content
from jengine.text.text_reader import (
    Markers,
    Parsing,
    TextReader,
    next_character,
    pass_rest,
    pass_until,
    take_expected,
    take_run,
)
from jengine.text.tool_parsers.python_literals import PythonValue, translate_value
from jengine.text.tool_parsers.tool_calls import Calls, to_json

_START, _END = "<|python_start|>", "<|python_end|>"  # around the list, by Llama 4
_SPACE = re.compile(r"[ \t\r\n]+")
_SEPARATOR = re.compile(r"[ \t\r\n,]+")
_NAME = re.compile(r"[A-Za-z0-9_.\-]+")


def parse_pythonic(reader: TextReader, calls: Calls) -> Parsing[ChatPart, None]:
    """Parse a list of calls at the start, then Content."""
    space = yield from take_run(reader, _SPACE)
    tag = _START if (yield from take_expected(reader, _START)) else ""
    if tag:
        space += tag + (yield from take_run(reader, _SPACE))
    if not (yield from take_expected(reader, "[")):
        yield Content(space)
    else:
        yield from _pass_calls(reader, calls, space + "[")
    if tag:
        yield from pass_until(reader, Markers(_END), Content)
    yield from pass_rest(reader, Content)


def _pass_calls(reader: TextReader, calls: Calls, opening: str) -> Parsing[ChatPart, None]:
    while True:
        value = PythonValue()
        value.read.append(opening)
        value.read.append((yield from take_run(reader, _SEPARATOR)))
        name = yield from _call_name(reader, value)
        if not name or not (yield from _translate_arguments(reader, value)):
            break
        yield from calls.whole(name, "".join(value.json))
        opening = ""
    closed = yield from take_expected(reader, "]")
    unread = "".join(value.read)
    if opening or not closed or unread.strip(", \t\r\n"):
        yield Content(unread + "]" * closed)


def _call_name(reader: TextReader, value: PythonValue) -> Parsing[ChatPart, str]:
    name = yield from take_run(reader, _NAME)
    value.read.append(name)
    if name:
        value.read.append((yield from take_run(reader, _SPACE)))
        if not (yield from take_expected(reader, "(")):
            return ""
        value.read.append("(")
    return name


def _translate_arguments(reader: TextReader, value: PythonValue) -> Parsing[ChatPart, bool]:
    """Translate up to the closing parenthesis; return whether all of it was valid."""
    before = "{"
    while True:
        value.read.append((yield from take_run(reader, _SEPARATOR)))
        if (yield from take_expected(reader, ")")):
            value.json.append("{}" if before == "{" else "}")
            return True
        key = yield from take_run(reader, _NAME)
        value.read.append(key)
        value.read.append((yield from take_run(reader, _SPACE)))
        if not key or not (yield from take_expected(reader, "=")):
            return False
        value.read.append("=")
        value.json.append(f"{before}{to_json(key)}: ")
        before = ", "
        if not (yield from translate_value(reader, value)):
            return False
        value.read.append((yield from take_run(reader, _SPACE)))
        if (yield from next_character(reader)) not in (",", ")"):
            return False
