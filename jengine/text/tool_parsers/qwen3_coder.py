"""Qwen3-Coder tool calls as tags.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Oslo
    </parameter>
    </function>
    </tool_call>

Untyped: the tools' schemas decide types. String arguments stream, others are reported when
complete. The outer tags are optional.
"""

from __future__ import annotations

from jengine.text.chat_parts import ChatPart, Content
from jengine.text.text_reader import (
    Markers,
    Parsing,
    TextReader,
    collect_until,
    pass_until,
    take_expected,
    take_run,
)
from jengine.text.tool_parsers.argument_types import is_string, typed_json
from jengine.text.tool_parsers.json_text import SPACE
from jengine.text.tool_parsers.tool_calls import Calls, string_piece, to_json

_CALL, _END_CALL = "<tool_call>", "</tool_call>"
_FUNCTION, _END_FUNCTION = "<function=", "</function>"
_PARAMETER, _END_PARAMETER = "<parameter=", "</parameter>"
_OPENINGS = Markers(_CALL, _FUNCTION)
_NAME_END = Markers(">", "\n")
_IN_CALL = Markers(_PARAMETER, _END_FUNCTION, _END_CALL, _CALL, _FUNCTION)
_VALUE_END = Markers(_END_PARAMETER, _PARAMETER, _END_FUNCTION, _END_CALL)


def parse_qwen3_coder(reader: TextReader, calls: Calls) -> Parsing[ChatPart, None]:
    """Alternate between Content and calls."""
    marker = ""
    while marker := marker or (yield from pass_until(reader, _OPENINGS, Content)):
        opening = marker
        if marker == _CALL:
            opening += yield from take_run(reader, SPACE)
            if not (yield from take_expected(reader, _FUNCTION)):
                yield Content(opening)
                marker = ""
                continue
            opening += _FUNCTION
        name, end = yield from collect_until(reader, _NAME_END)
        marker = ""
        if end == ">" and name.strip():
            yield calls.start(name.strip())
            marker = yield from _pass_arguments(reader, calls, name.strip())
        else:
            yield Content(opening + name + end)


def _pass_arguments(reader: TextReader, calls: Calls, name: str) -> Parsing[ChatPart, str]:
    """Yield the arguments; return the opening tag of a next call that starts before this one's end
    tag."""
    schemas = calls.schemas.get(name, {})
    before = "{"
    _, marker = yield from collect_until(reader, _IN_CALL)
    while marker == _PARAMETER:
        key, end = yield from collect_until(reader, Markers(">"))
        if not end:
            return ""
        yield calls.arguments(f"{before}{to_json(key.strip())}: ")
        before = ", "
        schema = schemas.get(key.strip())
        if is_string(schema):
            marker = yield from _pass_string(reader, calls)
        else:
            raw, marker = yield from collect_until(reader, _VALUE_END)
            if marker:
                yield calls.arguments(typed_json(_trim(raw), schema))
        if marker == _END_PARAMETER:
            _, marker = yield from collect_until(reader, _IN_CALL)
    if not marker:
        return ""
    yield calls.arguments("{}" if before == "{" else "}")
    if marker == _END_FUNCTION:
        space = yield from take_run(reader, SPACE)
        if not (yield from take_expected(reader, _END_CALL)):
            yield Content(space)
        return ""
    return marker if marker in (_CALL, _FUNCTION) else ""


def _pass_string(reader: TextReader, calls: Calls) -> Parsing[ChatPart, str]:
    """Yield a string without surrounding line breaks; return the marker that ends it."""
    yield calls.arguments('"')
    yield from take_expected(reader, "\n")
    held = ""
    while True:
        text, marker = reader.take_until(_VALUE_END)
        text = held + text
        held = "\n" if text.endswith("\n") else ""
        if text := text.removesuffix("\n"):
            yield calls.arguments(string_piece(text))
        if marker:
            yield calls.arguments('"')
            return marker
        if reader.ended:
            return ""
        yield None


def _trim(raw: str) -> str:
    return raw.removeprefix("\n").removesuffix("\n")
