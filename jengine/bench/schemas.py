"""Random JSON schemas of the kinds that applications use, and a validator for them.

In: a random generator. Out: schemas of the keywords that grammars support, nested a few levels.
`fits` knows exactly the keywords that `schema` writes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from typing import Any

WORDS = ("name", "id", "city", "tags", "price", "owner", "state", "items", "note", "unit")
PATTERNS = ("^[a-z]{2,6}$", "^[A-Z]{3}-[0-9]{4}$", "^(yes|no)$")
DEEPEST = 3


def schema(draw: random.Random, depth: int = 0) -> dict[str, Any]:
    """A random schema, an object at the top level."""
    simple = [_string, _number, _enum, _boolean]
    nested = [_object, _array, _any_of]
    if depth == 0:
        return _object(draw, depth)
    return draw.choice(simple if depth >= DEEPEST else simple + nested)(draw, depth)


def _object(draw: random.Random, depth: int) -> dict[str, Any]:
    names = draw.sample(WORDS, draw.randint(1, 5))
    return {
        "type": "object",
        "properties": {name: schema(draw, depth + 1) for name in names},
        "required": draw.sample(names, draw.randint(0, len(names))),
        "additionalProperties": False,
    }


def _array(draw: random.Random, depth: int) -> dict[str, Any]:
    least = draw.randint(0, 2)
    return {
        "type": "array", "items": schema(draw, depth + 1),
        "minItems": least, "maxItems": least + draw.randint(0, 3),
    }  # fmt: skip


def _any_of(draw: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [schema(draw, depth + 1), {"type": "null"}]}


def _string(draw: random.Random, depth: int) -> dict[str, Any]:
    if draw.random() < 0.3:
        return {"type": "string", "pattern": draw.choice(PATTERNS)}
    least = draw.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + draw.randint(1, 12)}


def _number(draw: random.Random, depth: int) -> dict[str, Any]:
    least = draw.randint(-50, 50)
    kind = draw.choice(("integer", "number"))
    return {"type": kind, "minimum": least, "maximum": least + draw.randint(0, 500)}


def _enum(draw: random.Random, depth: int) -> dict[str, Any]:
    return {"enum": draw.sample([*WORDS, 1, 2.5, True, None], draw.randint(1, 4))}


def _boolean(draw: random.Random, depth: int) -> dict[str, Any]:
    return {"type": "boolean"}


def fits(rule: Mapping[str, Any], value: Any) -> bool:
    """Whether a value conforms to a schema made here."""
    if "anyOf" in rule:
        return any(fits(one, value) for one in rule["anyOf"])
    if "enum" in rule:
        return any(type(one) is type(value) and one == value for one in rule["enum"])
    return _CHECKS[rule["type"]](rule, value)


def _fits_object(rule: Mapping[str, Any], value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(rule["required"]) <= set(value) <= set(rule["properties"])
        and all(fits(rule["properties"][name], item) for name, item in value.items())
    )


def _fits_array(rule: Mapping[str, Any], value: Any) -> bool:
    return (
        isinstance(value, list)
        and rule["minItems"] <= len(value) <= rule["maxItems"]
        and all(fits(rule["items"], item) for item in value)
    )


def _fits_string(rule: Mapping[str, Any], value: Any) -> bool:
    if not isinstance(value, str):
        return False
    if "pattern" in rule:
        return re.search(rule["pattern"], value) is not None
    return rule["minLength"] <= len(value) <= rule["maxLength"]


def _fits_number(rule: Mapping[str, Any], value: Any) -> bool:
    kinds = (int,) if rule["type"] == "integer" else (int, float)
    whole = rule["type"] == "integer" and isinstance(value, float) and value.is_integer()
    is_number = (isinstance(value, kinds) or whole) and not isinstance(value, bool)
    return is_number and rule["minimum"] <= value <= rule["maximum"]


_CHECKS: dict[str, Callable[[Mapping[str, Any], Any], bool]] = {
    "object": _fits_object,
    "array": _fits_array,
    "string": _fits_string,
    "integer": _fits_number,
    "number": _fits_number,
    "boolean": lambda rule, value: isinstance(value, bool),
    "null": lambda rule, value: value is None,
}
