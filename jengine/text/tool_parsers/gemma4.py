"""Gemma 4 tool calls, translated to JSON as they stream.

    <|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:3,units:[<|"|>C<|"|>]}<tool_call|>

Keys and values are unquoted, strings are between marks. Unmarked values get the schema's types, or
JSON's. The closing mark ends a call wherever it occurs and closes open
containers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from jengine.text.chat_parts import ChatPart, Content
from jengine.text.text_reader import (
    Markers,
    Parsing,
    TextReader,
    collect_until,
    goes_on_with,
    next_character,
    pass_until,
    take_expected,
    take_run,
)
from jengine.text.tool_parsers.argument_types import is_string, plain_json, typed_json
from jengine.text.tool_parsers.tool_calls import Calls, string_piece, to_json

_START, _END, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_OUTSIDE = Markers(_START, _END)
_NAME_END = Markers("{", "(", _END)
_KEY_END = Markers(":", "}", _END)
_VALUE_ENDS = {
    "}": Markers(",", "}", "]", _QUOTE, _END),
    ")": Markers(",", "}", "]", ")", _QUOTE, _END),
}
_STRING_END = Markers(_QUOTE, _END)
_SEPARATORS = re.compile(r"[ \t\r\n,]+")
_SPACE = re.compile(r"[ \t\r\n]+")
_MAX_DEPTH = 64
_CLOSERS = {"{": "}", "[": "]", "(": ")"}


@dataclass
class _OpenContainer:
    """An open object or list, and its schema."""

    closer: str
    schema: object
    has_items: bool = False

    def schema_of(self, key: str) -> object:
        """Schema of an item, or None."""
        if not isinstance(self.schema, Mapping):
            return None
        if self.closer == "]":
            return self.schema.get("items")
        properties = self.schema.get("properties")
        return properties.get(key) if isinstance(properties, Mapping) else None


def parse_gemma4(reader: TextReader, calls: Calls) -> Parsing[ChatPart, None]:
    """Alternate between Content and calls."""
    while marker := (yield from pass_until(reader, _OUTSIDE, Content)):
        if marker == _START:
            yield from _pass_call(reader, calls)


def _pass_call(reader: TextReader, calls: Calls) -> Parsing[ChatPart, None]:
    opening = _START + (yield from take_run(reader, _SEPARATORS))
    for prefix in ("call:", ":"):
        if (yield from take_expected(reader, prefix)):
            opening += prefix
            break
    name, end = yield from collect_until(reader, _NAME_END)
    if not opening.endswith(":") or not name.strip() or not end:
        yield Content(opening + name + end)
        return
    name = name.strip()
    yield calls.start(name)
    if end == _END:
        yield calls.arguments("{}")
        return
    top = _OpenContainer(_CLOSERS[end], {"properties": calls.schemas.get(name)})
    yield from _Translation(reader, calls, top).run()
    yield from take_run(reader, _SEPARATORS)
    yield from take_expected(reader, _END)


@final
class _Translation:
    """Translates one call's arguments, from its opening brace."""

    def __init__(self, reader: TextReader, calls: Calls, top: _OpenContainer) -> None:
        self._reader = reader
        self._calls = calls
        self._open = [top]
        self._value_end = _VALUE_ENDS[top.closer]

    def run(self) -> Parsing[ChatPart, None]:
        """Yield the arguments as JSON; truncated ones stay open."""
        reader = self._reader
        yield self._calls.arguments("{")
        while self._open:
            yield from take_run(reader, _SEPARATORS)
            character = yield from next_character(reader)
            if not character:
                return
            if (yield from goes_on_with(reader, _END)):
                while self._open:
                    yield self._close()
            elif character in "}])":
                reader.take(1)
                if character == self._open[-1].closer:
                    yield self._close()
            elif not (yield from self._pass_item(self._open[-1])):
                return

    def _close(self) -> ChatPart:
        return self._calls.arguments("]" if self._open.pop().closer == "]" else "}")

    def _pass_item(self, container: _OpenContainer) -> Parsing[ChatPart, bool]:
        """Yield a container's next item; return whether it was complete."""
        reader, key = self._reader, ""
        before = ", " if container.has_items else ""
        if container.closer != "]":
            key, end = yield from collect_until(reader, _KEY_END)
            if end != ":":
                reader.put_back(len(end))
                return bool(end)
            key = key.strip().removeprefix(_QUOTE).removesuffix(_QUOTE)
            before += f"{to_json(key)}: "
        container.has_items = True
        yield self._calls.arguments(before)
        yield from take_run(reader, _SPACE)
        return (yield from self._pass_value(container.schema_of(key)))

    def _pass_value(self, schema: object) -> Parsing[ChatPart, bool]:
        reader = self._reader
        if (yield from take_expected(reader, _QUOTE)):
            return (yield from self._pass_string(schema))
        character = yield from next_character(reader)
        if character and character in "{[" and len(self._open) < _MAX_DEPTH:
            self._open.append(_OpenContainer(_CLOSERS[reader.take(1)], schema))
            yield self._calls.arguments(character)
            return True
        raw, end = yield from collect_until(reader, self._value_end)
        if not end:
            return False
        reader.put_back(len(end))
        raw = raw.strip()
        yield self._calls.arguments(plain_json(raw) if schema is None else typed_json(raw, schema))
        return True

    def _pass_string(self, schema: object) -> Parsing[ChatPart, bool]:
        if schema is None or is_string(schema):
            yield self._calls.arguments('"')
            end = yield from pass_until(self._reader, _STRING_END, self._string_piece)
            if end:
                yield self._calls.arguments('"')
        else:
            raw, end = yield from collect_until(self._reader, _STRING_END)
            if end:
                yield self._calls.arguments(typed_json(raw, schema))
        if end == _END:
            self._reader.put_back(len(_END))
        return bool(end)

    def _string_piece(self, text: str) -> ChatPart:
        return self._calls.arguments(string_piece(text))
