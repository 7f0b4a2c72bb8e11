"""Mistral tool calls.

    [TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]...       since tokenizer version 11
    [TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}}, ...]            before

`[ARGS]` is optional, and `[CALL_ID]` with an id may precede it. Call ids are nine letters and
digits, as Mistral's chat templates require.
"""

from __future__ import annotations

import secrets
import string

from jengine.text.chat_parts import ChatPart, Content
from jengine.text.text_reader import (
    Markers,
    Parsing,
    TextReader,
    collect_until,
    next_character,
    pass_until,
    take_expected,
    take_run,
)
from jengine.text.tool_parsers.json_text import SEPARATORS, SPACE, parse_call_object, pass_value
from jengine.text.tool_parsers.tool_calls import Calls

_CALLS, _ARGUMENTS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_NAME_END = Markers(_ARGUMENTS, _ID, _CALLS, "{", "\n")
_ID_END = Markers(_ARGUMENTS, _CALLS, "{")
_LETTERS = string.ascii_letters + string.digits


def mistral_call_id() -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(9))


def parse_mistral(reader: TextReader, calls: Calls) -> Parsing[ChatPart, None]:
    """Alternate between Content and one call or a list."""
    marker = ""
    while marker or (yield from pass_until(reader, Markers(_CALLS), Content)):
        space = yield from take_run(reader, SPACE)
        marker = ""
        if (yield from take_expected(reader, _CALLS)):
            marker = _CALLS
        elif (yield from take_expected(reader, "[")):
            yield from _pass_list(reader, calls, f"{_CALLS}{space}[")
        elif (yield from take_expected(reader, "{")):
            yield from parse_call_object(reader, calls, f"{_CALLS}{space}{{")
        else:
            marker = yield from _pass_named(reader, calls, _CALLS + space)


def _pass_list(reader: TextReader, calls: Calls, opening: str) -> Parsing[ChatPart, None]:
    while True:
        opening += yield from take_run(reader, SEPARATORS)
        if not (yield from take_expected(reader, "{")):
            break
        yield from parse_call_object(reader, calls, opening + "{")
        opening = ""
    closing = yield from take_expected(reader, "]")
    if opening.strip(", \t\r\n"):
        yield Content(opening + "]" * closing)


def _pass_named(reader: TextReader, calls: Calls, opening: str) -> Parsing[ChatPart, str]:
    """Yield a call that begins with its name; return the token that starts the next."""
    name, end = yield from collect_until(reader, _NAME_END)
    if end in ("", "\n", _CALLS) or not name.strip():
        yield Content(opening + name + ("" if end == _CALLS else end))
        return _CALLS if end == _CALLS else ""
    if end == _ID:
        _, end = yield from collect_until(reader, _ID_END)
    yield calls.start(name.strip())
    if end == "{":
        yield from pass_value(reader, calls.arguments, opened=True)
    elif end == _ARGUMENTS:
        yield from take_run(reader, SPACE)
        if (yield from next_character(reader)) == "{":
            yield from pass_value(reader, calls.arguments)
    return _CALLS if end == _CALLS else ""
