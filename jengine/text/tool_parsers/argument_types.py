"""Types untyped arguments by the request's JSON schema.

In: an argument's raw text and schema. Out: JSON. Schemas come from users: any form is accepted, and
unknown forms mean string.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from jengine.text.tool_parsers.tool_calls import to_json

_MAX_SCHEMAS = 100  # limit of alternatives considered
_NAMES = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}
_ALIASES = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "num": "number",
    "bool": "boolean",
    "list": "array",
    "tuple": "array",
    "dict": "object",
}


def schema_types(schema: object) -> frozenset[str]:
    """Type names that the schema allows; string if it names none."""
    found: set[str] = set()
    waiting = [schema]
    seen = 0
    while waiting and seen < _MAX_SCHEMAS:
        one = waiting.pop()
        seen += 1
        if not isinstance(one, Mapping):
            continue
        given = one.get("type")
        names = given if isinstance(given, list) else [given]
        found.update(_ALIASES.get(name, name) for name in names if isinstance(name, str))
        if isinstance(values := one.get("enum"), list):
            found.update(_NAMES[type(value)] for value in values if type(value) in _NAMES)
        for choices in (one.get(key) for key in ("anyOf", "oneOf", "allOf")):
            if isinstance(choices, list):
                waiting += choices
    return frozenset(found or {"string"})


def is_string(schema: object) -> bool:
    return schema_types(schema) == {"string"}


def typed_json(raw: str, schema: object) -> str:
    """JSON of the narrowest allowed type that fits, else a string."""
    types = schema_types(schema)
    for name, read in _READERS.items():
        if name in types:
            try:
                return to_json(read(raw))
            except (ValueError, RecursionError):
                continue
    return to_json(raw)


def plain_json(raw: str) -> str:
    """JSON of an argument without schema: number, boolean, null or string."""
    if raw in ("true", "false", "null"):
        return raw
    return typed_json(raw, {"type": ["integer", "number", "string"]})


def _read_null(raw: str) -> None:
    if raw.strip().lower() not in ("null", "none"):
        raise ValueError(raw)


def _read_number(raw: str) -> float:
    number = float(raw)
    if not math.isfinite(number):
        raise ValueError(raw)
    return int(number) if number.is_integer() else number


def _read_boolean(raw: str) -> bool:
    known = {"true": True, "1": True, "false": False, "0": False}
    if (word := raw.strip().lower()) not in known:
        raise ValueError(raw)
    return known[word]


def _read_json(kind: type) -> Callable[[str], Any]:
    def read(raw: str) -> Any:
        value = json.loads(raw)
        if not isinstance(value, kind):
            raise ValueError(raw)
        return value

    return read


_READERS: dict[str, Callable[[str], Any]] = {
    "null": _read_null,
    "integer": int,
    "number": _read_number,
    "boolean": _read_boolean,
    "object": _read_json(dict),
    "array": _read_json(list),
}
