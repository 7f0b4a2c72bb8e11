"""Translates Python literals to JSON in one pass, without evaluation.

In: a reader at the start of a value. Out: the text read, and the value as JSON. Nesting is bounded;
names, calls, operators, sets and prefixed strings are refused.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from jengine.text.text_reader import Parsing, Part, TextReader, next_character, take_run
from jengine.text.tool_parsers.tool_calls import string_piece

_MAX_DEPTH = 64
_SPACE = re.compile(r"[ \t\r\n]+")
_SCALAR = re.compile(r"[A-Za-z0-9_.+\-]+")
_IN_STRING = {quote: re.compile(rf"[^\\{quote}]+") for quote in "'\""}
_ESCAPE = re.compile(
    r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)", re.DOTALL
)
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_MAX_NUMBER = 400  # characters; longer numbers overflow doubles and are slow to convert
_WORDS = {"True": "true", "False": "false", "None": "null"}
_WORDS |= {word: word for word in _WORDS.values()}  # JSON's spellings, which models write too
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a"}
_SIMPLE |= {"\\": "\\", "'": "'", '"': '"', "\n": ""}
_CLOSERS = {"[": "]", "(": ")", "{": "}"}


@dataclass(frozen=True)
class PythonValue:
    """Text read so far, returned as Content on failure, and its JSON."""

    read: list[str] = field(default_factory=list)
    json: list[str] = field(default_factory=list)


@dataclass
class _Container:
    closer: str
    has_items: bool = False


def translate_value(reader: TextReader, value: PythonValue) -> Parsing[Part, bool]:
    """Translate one value; return whether it was a literal."""
    containers: list[_Container] = []
    while True:
        character = yield from _next_after_space(reader, value)
        if containers and character == containers[-1].closer:
            value.read.append(reader.take(1))
            value.json.append("}" if containers.pop().closer == "}" else "]")
        else:
            if containers and not (yield from _begin_item(reader, value, containers[-1])):
                return False
            character = yield from _next_after_space(reader, value)
            if closer := _CLOSERS.get(character):
                if len(containers) == _MAX_DEPTH:
                    return False
                value.read.append(reader.take(1))
                value.json.append("{" if closer == "}" else "[")
                containers.append(_Container(closer))
                continue
            if not (yield from _translate_scalar(reader, value)):
                return False
        if not containers:
            return True
        character = yield from _next_after_space(reader, value)
        if character == ",":
            value.read.append(reader.take(1))
        elif character != containers[-1].closer:
            return False


def _next_after_space(reader: TextReader, value: PythonValue) -> Parsing[Part, str]:
    value.read.append((yield from take_run(reader, _SPACE)))
    return (yield from next_character(reader))


def _begin_item(
    reader: TextReader, value: PythonValue, container: _Container
) -> Parsing[Part, bool]:
    """Translate the start of an item: comma, and a dict's key."""
    if container.has_items:
        value.json.append(", ")
    container.has_items = True
    if container.closer != "}":
        return True
    if not (yield from _translate_string(reader, value)):
        return False
    if (yield from _next_after_space(reader, value)) != ":":
        return False
    value.read.append(reader.take(1))
    value.json.append(": ")
    return True


def _translate_scalar(reader: TextReader, value: PythonValue) -> Parsing[Part, bool]:
    if (yield from next_character(reader)) in ("'", '"'):
        return (yield from _translate_string(reader, value))
    raw = yield from take_run(reader, _SCALAR)
    value.read.append(raw)
    translated = _WORDS.get(raw) or _number(raw)
    value.json.append(translated)
    return bool(translated)


def _translate_string(reader: TextReader, value: PythonValue) -> Parsing[Part, bool]:
    quote = yield from next_character(reader)
    if quote not in ("'", '"'):
        return False
    raw: list[str] = []
    value.read.append(reader.take(1))
    while (character := (yield from next_character(reader))) and character != quote:
        if character == "\\":
            raw.append(reader.take(1))
            if (yield from next_character(reader)):
                raw.append(reader.take(1))
        else:
            raw.append(reader.take_while(_IN_STRING[quote]))
    text = "".join(raw)
    value.read.append(text + reader.take(1))
    value.json.append(f'"{string_piece(_ESCAPE.sub(_unescape, text))}"')
    return bool(character)


def _unescape(match: re.Match[str]) -> str:
    code = match.group()[1:]
    if code in _SIMPLE:
        return _SIMPLE[code]
    if code[0] in "xuU" and len(code) > 1:
        number = int(code[1:], 16)
        return chr(number) if number <= 0x10FFFF else match.group()
    return chr(int(code, 8)) if code[0] in "01234567" else match.group()


def _number(raw: str) -> str:
    """The number as JSON; "" if invalid or not representable."""
    if len(raw) > _MAX_NUMBER or not raw:
        return ""
    if _JSON_NUMBER.fullmatch(raw):
        return raw
    try:
        return str(int(raw, 0))
    except ValueError:
        pass
    try:
        number = float(raw)
    except ValueError:
        return ""
    return repr(number) if math.isfinite(number) else ""
