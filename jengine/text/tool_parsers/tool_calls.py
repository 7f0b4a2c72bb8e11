"""Collects the tool calls of one answer.

In: names and arguments in text order. Out: ToolStart and ToolArguments with index and id. Must not
know: any format.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, final

from jengine.text.chat_parts import AnswerContext, ToolArguments, ToolStart

_SURROGATES = re.compile("[\ud800-\udfff]")


def random_call_id() -> str:
    return f"chatcmpl-tool-{uuid.uuid4().hex}"


@final
class Calls:
    """Numbers calls, and holds `schemas[tool][argument]` of the request."""

    def __init__(
        self,
        schemas: Mapping[str, Mapping[str, Any]] | None = None,
        new_id: Callable[[], str] = random_call_id,
        given: AnswerContext | None = None,
    ) -> None:
        self.given = given or AnswerContext()
        self.schemas = schemas or {}
        self.count = 0
        self._new_id = new_id

    def start(self, name: str, call_id: str | None = None) -> ToolStart:
        self.count += 1
        return ToolStart(self.count - 1, call_id or self._new_id(), name)

    def arguments(self, text: str) -> ToolArguments:
        """A piece of the current call's arguments."""
        return ToolArguments(self.count - 1, text)

    def whole(self, name: str, arguments: str) -> Iterator[ToolStart | ToolArguments]:
        yield self.start(name)
        yield self.arguments(arguments)


def to_json(value: object) -> str:
    """JSON as vLLM writes arguments: non-ASCII unescaped, lone surrogates escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _SURROGATES.sub(lambda half: f"\\u{ord(half.group()):04x}", text)


def string_piece(text: str) -> str:
    """Escape a piece of a JSON string, without quotes."""
    return to_json(text)[1:-1]


def unescape(raw: str) -> str:
    """Unescape the inside of a JSON string; invalid ones are returned as is."""
    if "\\" not in raw:
        return raw
    try:
        text = json.loads(f'"{raw}"', strict=False)
    except ValueError:
        return raw
    return _SURROGATES.sub("\ufffd", text)


def argument_schemas(tools: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Tool name -> argument name -> schema, for chat and Responses requests."""
    schemas: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        function = tool.get("function", tool)
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            continue
        parameters = function.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
        schemas[function["name"]] = properties if isinstance(properties, Mapping) else {}
    return schemas
