"""Scans one JSON value inside a text, and tool calls described by objects.

In: a reader at the start of a value. Out: its raw text as it streams, or a tool call. Only the end
is found, nothing else validated: arguments reach the client verbatim. Depth is a counter, so
nesting costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from jengine.text.chat_parts import ChatPart, Content
from jengine.text.text_reader import (
    Parsing,
    Part,
    TextReader,
    next_character,
    take_run,
)
from jengine.text.tool_parsers.tool_calls import Calls, unescape

SPACE = re.compile(r"[ \t\r\n]+")
_PLAIN = re.compile(r'[^"{}\[\]]+')  # inside a container, outside of strings
_IN_STRING = re.compile(r'[^"\\]+')
_SCALAR = re.compile(r"[^\s,:{}\[\]\"<]+")
SEPARATORS = re.compile(r"[ \t\r\n,]+")


def pass_value(
    reader: TextReader, make: Callable[[str], Part], *, opened: bool = False
) -> Parsing[Part, bool]:
    """Yield a value's raw text as it arrives; return whether it was complete. `opened`: its opening
    brace is consumed already."""
    if opened:
        yield make("{")
        return (yield from _pass_container(reader, make, depth=1))
    first = yield from next_character(reader)
    if first == '"':
        return (yield from _pass_string(reader, make))
    if first and first in "{[":
        return (yield from _pass_container(reader, make))
    scalar = yield from take_run(reader, _SCALAR)
    if scalar:
        yield make(scalar)
    return bool(scalar)


def _pass_container(
    reader: TextReader, make: Callable[[str], Part], depth: int = 0
) -> Parsing[Part, bool]:
    while character := (yield from next_character(reader)):
        if character == '"':
            yield from _pass_string(reader, make)
        elif character in "{[":
            depth += 1
            yield make(reader.take(1))
        elif character in "}]":
            depth -= 1
            yield make(reader.take(1))
            if depth == 0:
                return True
        else:
            yield make(reader.take_while(_PLAIN))
    return False


def _pass_string(reader: TextReader, make: Callable[[str], Part]) -> Parsing[Part, bool]:
    yield make(reader.take(1))
    while character := (yield from next_character(reader)):
        if character == '"':
            yield make(reader.take(1))
            return True
        if character == "\\":
            yield make(reader.take(1))
            if (yield from next_character(reader)):
                yield make(reader.take(1))
        else:
            yield make(reader.take_while(_IN_STRING))
    return False


def collect_value(reader: TextReader) -> Parsing[Part, tuple[str, bool]]:
    """Return (raw text of a value, whether it was complete)."""
    texts: list[str] = []
    value = pass_value(reader, lambda text: text)
    while True:
        try:
            text = next(value)
        except StopIteration as stop:
            return "".join(texts), stop.value
        if text is None:
            yield None
        else:
            texts.append(text)


def parse_call_object(
    reader: TextReader, calls: Calls, opening: str, *, needs_arguments: bool = False
) -> Parsing[ChatPart, bool]:
    """Yield the call in an object with `name` and `arguments` or `parameters`, after its opening
    brace; return whether there was one.

    Without a name, or required arguments, everything read is Content, preceded by `opening`.
    Arguments stream; if they are a JSON string, its text is used.
    """
    read = [opening]  # Content if this is no call
    name = arguments = ""
    started = given = False
    while key := (yield from _next_key(reader, read)):
        if key == "name" and not name:
            name = yield from _collect_name(reader, read)
        elif key in ("arguments", "parameters") and not given:
            given = bool((yield from next_character(reader)).strip("}],:"))
            if started:
                yield from _pass_arguments(reader, calls)
            elif given and name:
                started = True
                yield calls.start(name)
                yield from _pass_arguments(reader, calls)
            else:
                raw, complete = yield from collect_value(reader)
                read.append(raw)
                arguments = _text_of(raw) if complete or raw[:1] != '"' else ""
        else:
            read.append((yield from collect_value(reader))[0])
        if name and not started and (given or not needs_arguments):
            started = True
            yield calls.start(name)
            yield calls.arguments(arguments)
    if not started:
        yield Content("".join(read))
    elif not given and read[-1] == "}":
        yield calls.arguments("{}")
    return started


def _collect_name(reader: TextReader, read: list[str]) -> Parsing[ChatPart, str]:
    raw, complete = yield from collect_value(reader)
    read.append(raw)
    return _text_of(raw) if complete and raw.startswith('"') else ""


def _pass_arguments(reader: TextReader, calls: Calls) -> Parsing[ChatPart, None]:
    if (yield from next_character(reader)) == '"':
        raw, _ = yield from collect_value(reader)
        yield calls.arguments(_text_of(raw))
    else:
        yield from pass_value(reader, calls.arguments)


def _text_of(raw: str) -> str:
    """Decode a JSON string, possibly truncated; other values verbatim."""
    return unescape(raw[1:].removesuffix('"')) if raw.startswith('"') else raw


def _next_key(reader: TextReader, read: list[str]) -> Parsing[ChatPart, str]:
    """Advance to the next member's value; return its key, "" if there is none."""
    read.append((yield from take_run(reader, SEPARATORS)))
    if (yield from next_character(reader)) != '"':
        read.append((yield from _take_one(reader, "}")))
        return ""
    raw, _ = yield from collect_value(reader)
    read.append(raw)
    read.append((yield from take_run(reader, SPACE)))
    read.append((yield from _take_one(reader, ":")))
    colon = read[-1]
    read.append((yield from take_run(reader, SPACE)))
    return raw[1:-1] if colon else ""


def _take_one(reader: TextReader, expected: str) -> Parsing[Part, str]:
    """Consume the next character if it is `expected`; return it, else ""."""
    return reader.take(1) if (yield from next_character(reader)) == expected else ""
