"""tool_choice that forces calls: the JSON schema of an answer that consists of calls.

In: a checked request's tools and choice. Out: the parameters of its grammar. The parser that reads
such answers is `text/tool_parsers/forced.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jengine.server.chat.fields import ChatRequest
from jengine.server.errors import ApiError
from jengine.structured_outputs import StructuredOutputsParams

ANYTHING: dict[str, Any] = {"type": "object", "properties": {}}


def forced_calls(request: ChatRequest) -> StructuredOutputsParams | None:
    """Return the JSON schema that forces tool calls, or None if tool_choice forces none.

    For a named function it is the schema of its arguments, otherwise that of a list of calls.
    """
    tools = [tool["function"] for tool in request.tools or ()]
    if request.forced_name is not None:
        named = next(tool for tool in tools if tool["name"] == request.forced_name)
        return _written(_parameters(named))
    if request.tool_choice != "required":
        return None
    definitions: dict[str, Any] = {}
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": [_call(tool, definitions) for tool in tools]},
    }
    if request.parallel_tool_calls is False:
        schema["maxItems"] = 1
    if definitions:
        schema["$defs"] = definitions
    return _written(schema)


def _written(schema: Mapping[str, Any]) -> StructuredOutputsParams:
    """Constrain to a JSON schema with at most one space between tokens: models write calls as they
    know them, and none fills an answer with whitespace."""
    return StructuredOutputsParams(json=schema, whitespace_pattern=" ?")


def _parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    return dict(function.get("parameters") or ANYTHING)


def _call(function: Mapping[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Schema of one call. `$defs` are hoisted to the root, to which `$ref`s point."""
    parameters = _parameters(function)
    for name, one in (parameters.pop("$defs", None) or {}).items():
        if definitions.setdefault(name, one) != one:
            raise ApiError(
                400,
                f"tools: $defs has {name!r:.80} with two meanings, in {function['name']!r:.80} and "
                "in another tool. Rename one of them.",
                param="tools",
            )
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": [function["name"]]},
                       "parameters": parameters},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }  # fmt: skip
