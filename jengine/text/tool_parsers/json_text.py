"""One JSON text inside a longer one: where it ends, and the call that an object describes.

In: a reader at the start of a JSON value. Out: its raw text as it comes, or a tool call.
The text is not validated beyond finding its end: arguments reach the client as the model wrote
them. Depth is a number, so nesting costs nothing.
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
from jengine.text.tool_parsers.calls import Calls, unescape

SPACE = re.compile(r"[ \t\r\n]+")
_PLAIN = re.compile(r'[^"{}\[\]]+')  # inside a container, outside of strings
_IN_STRING = re.compile(r'[^"\\]+')
_SCALAR = re.compile(r"[^\s,:{}\[\]\"<]+")
_SEPARATORS = re.compile(r"[ \t\r\n,]+")


def pass_value(reader: TextReader, make: Callable[[str], Part]) -> Parsing[Part, bool]:
    """Yield the raw text of one value as it comes; return whether it was complete."""
    first = yield from next_character(reader)
    if first == '"':
        return (yield from _pass_string(reader, make))
    if first and first in "{[":
        return (yield from _pass_container(reader, make))
    scalar = yield from take_run(reader, _SCALAR)
    if scalar:
        yield make(scalar)
    return bool(scalar)


def _pass_container(reader: TextReader, make: Callable[[str], Part]) -> Parsing[Part, bool]:
    depth = 0
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
    """Return the raw text of one value, and whether it was complete."""
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
    reader: TextReader, calls: Calls, opening: str = ""
) -> Parsing[ChatPart, bool]:
    """Yield the call that an object with `name` and `arguments` (or `parameters`) describes.

    Returns whether there was one. If the name never comes, what was read is Content again, with
    `opening` before it. The call starts with its name, and arguments follow as they come.
    """
    read = [opening]  # to be given back if this is no call
    started = given = False
    held = ""  # arguments that stand before the name
    while key := (yield from _next_key(reader, read)):
        if key == "name" and not started:
            raw, complete = yield from collect_value(reader)
            read.append(raw)
            if complete and len(raw) > 2 and raw[0] == '"':
                started = True
                yield calls.start(unescape(raw[1:-1]))
                yield calls.arguments(held)
        elif key in ("arguments", "parameters") and not given:
            if started:
                given = True
                yield from pass_value(reader, calls.arguments)
            else:
                held, _ = yield from collect_value(reader)
                given = bool(held)
                read.append(held)
        else:
            read.append((yield from collect_value(reader))[0])
    if not started:
        yield Content("".join(read))
    elif not given:
        yield calls.arguments("{}")
    return started


def _next_key(reader: TextReader, read: list[str]) -> Parsing[ChatPart, str]:
    """Go on to the value of the object's next member; return its key, "" if there is none."""
    if len(read) == 1:
        read.append((yield from take_run(reader, SPACE)))
        read.append((yield from _take_one(reader, "{")))
        if not read[-1]:
            return ""
    read.append((yield from take_run(reader, _SEPARATORS)))
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
    """Take the next character if it is the expected one; return it, else ""."""
    return reader.take(1) if (yield from next_character(reader)) == expected else ""
