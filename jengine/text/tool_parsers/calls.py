"""The tool calls of one answer, as parsers report them.

In: names and arguments in the order of the text. Out: ToolStart and ToolArguments with index and
id. Must not know: any format.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, final

from jengine.text.chat_parts import Given, ToolArguments, ToolStart

_SURROGATES = re.compile("[\ud800-\udfff]")


def random_call_id() -> str:
    return f"chatcmpl-tool-{uuid.uuid4().hex}"


@final
class Calls:
    """Numbers the calls and holds the JSON schemas of the tools' arguments.

    `schemas[tool][argument]` is what the request says about an argument; a parser whose format
    has no types uses it.
    """

    def __init__(
        self,
        schemas: Mapping[str, Mapping[str, Any]] | None = None,
        new_id: Callable[[], str] = random_call_id,
        given: Given | None = None,
    ) -> None:
        self.given = given or Given()
        self.schemas = schemas or {}
        self.count = 0
        self._new_id = new_id

    def start(self, name: str, call_id: str | None = None) -> ToolStart:
        """The next call begins."""
        self.count += 1
        return ToolStart(self.count - 1, call_id or self._new_id(), name)

    def arguments(self, text: str) -> ToolArguments:
        """A piece of the latest call's arguments."""
        return ToolArguments(self.count - 1, text)

    def whole(self, name: str, arguments: str) -> Iterator[ToolStart | ToolArguments]:
        """A call whose arguments are complete."""
        yield self.start(name)
        yield self.arguments(arguments)


def to_json(value: object) -> str:
    """The value as vLLM writes arguments: characters as they are, but no half of a pair."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _SURROGATES.sub(lambda half: f"\\u{ord(half.group()):04x}", text)


def string_piece(text: str) -> str:
    """A piece of a JSON string, without quotes."""
    return to_json(text)[1:-1]


def unescape(raw: str) -> str:
    """What is between the quotes of a JSON string; as it is if it is not valid."""
    if "\\" not in raw:
        return raw
    try:
        text = json.loads(f'"{raw}"', strict=False)
    except ValueError:
        return raw
    return _SURROGATES.sub("\ufffd", text)


def argument_schemas(tools: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Tool name -> argument name -> schema, from the tools of a chat or a Responses request."""
    schemas: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        function = tool.get("function", tool)
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            continue
        parameters = function.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
        schemas[function["name"]] = properties if isinstance(properties, Mapping) else {}
    return schemas
