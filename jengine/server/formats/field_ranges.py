"""Ranges of request fields for /openapi.json, except sampling parameters (see `Parameter`). Must
not know what a field means."""

from __future__ import annotations

from typing import Annotated, Any

from jengine.prompts import LONGEST_SALT
from jengine.request_parameters import Text, TokenId, told

Priority = Annotated[int, told(minimum=-(2**31), maximum=2**31 - 1)]
RequestId = Annotated[str, told(pattern="^[A-Za-z0-9._:/@+=#~-]{1,128}$")]
Salt = Annotated[str, told(pattern="^[ -~]+$", maxLength=LONGEST_SALT)]
Side = Annotated[str, told(enum=["left", "right"])]
_SCHEMA = {
    "type": "object",
    "required": ["schema"],
    "properties": {"name": {"type": "string"}, "schema": {"enum": [{"type": "object"}, True]}},
}
ResponseFormat = Annotated[
    dict[str, Any],
    told(
        oneOf=[
            {"required": ["type"], "properties": {"type": {"enum": ["text", "json_object"]}}},
            {
                "required": ["type", "json_schema"],
                "properties": {"type": {"const": "json_schema"}, "json_schema": _SCHEMA},
            },
        ]
    ),
]
# A text, token ids, or a list of either.
Prompt = (
    Text
    | Annotated[
        list[int | str | list[TokenId]],
        told(
            minItems=1,
            anyOf=[
                {"items": {"type": "string", "minLength": 1}},
                {"items": {"type": "integer", "minimum": 0}},
                {"items": {"type": "array", "minItems": 1}},
            ],
        ),
    ]
)
Tool = Annotated[
    dict[str, Any],
    told(
        required=["type", "function"],
        properties={
            "type": {"const": "function"},
            "function": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
                    "description": {"type": "string"},
                    "parameters": {"type": "object"},
                },
            },
        },
    ),
]
Tools = Annotated[list[Tool], told(minItems=1)]
ToolChoice = Annotated[str, told(enum=["none", "auto", "required"])]
