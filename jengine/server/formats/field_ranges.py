"""What the values of fields may be, as /openapi.json tells it.

Decoding checks types alone: what is out of its range is refused where it is used, with a message
that says what to do. Must not know what a field means.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

LONGEST_SALT = 1024


def _told(**schema: Any) -> Meta:
    return Meta(extra_json_schema=schema)


Temperature = Annotated[float, _told(minimum=0, maximum=2)]
Share = Annotated[float, _told(minimum=0, maximum=1)]
PositiveShare = Annotated[float, _told(exclusiveMinimum=0, maximum=1)]
Penalty = Annotated[float, _told(minimum=-2, maximum=2)]
PositiveNumber = Annotated[float, _told(exclusiveMinimum=0)]
Amount = Annotated[int, _told(minimum=1)]
AmountOrNone = Annotated[int, _told(minimum=0)]
# -1: as many as there are.
AmountOrAll = Annotated[int, _told(minimum=-1)]
Seed = Annotated[int, _told(minimum=-(2**63), maximum=2**63 - 1)]
Priority = Annotated[int, _told(minimum=-(2**31), maximum=2**31 - 1)]
TokenId = Annotated[int, _told(minimum=0, maximum=2**31 - 1)]
TokenIds = list[TokenId]
Text = Annotated[str, _told(minLength=1)]
Texts = list[Text]
Bias = Annotated[
    dict[str, Annotated[float, _told(minimum=-100, maximum=100)]],
    _told(propertyNames={"pattern": "^[0-9]{1,6}$"}),
]
RequestId = Annotated[str, _told(pattern="^[A-Za-z0-9._-]{1,128}$")]
Salt = Annotated[str, _told(pattern="^[ -~]+$", maxLength=LONGEST_SALT)]
Side = Annotated[str, _told(enum=["left", "right"])]
_SCHEMA = {
    "type": "object",
    "required": ["schema"],
    "properties": {"name": {"type": "string"}, "schema": {"enum": [{"type": "object"}, True]}},
}
ResponseFormat = Annotated[
    dict[str, Any],
    _told(
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
        _told(
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
    _told(
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
Tools = Annotated[list[Tool], _told(minItems=1)]
ToolChoice = Annotated[str, _told(enum=["none", "auto", "required"])]
