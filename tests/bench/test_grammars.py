"""The bench of grammars: made-up schemas, what fits them, and answers drawn from masks."""

from __future__ import annotations

import random
from typing import Any

import pytest

from jengine.bench.grammars import draw_answers, rules
from jengine.bench.schemas import fits, schema
from jengine.weights.resolve import resolve_model

OBJECT = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "minimum": 1, "maximum": 3},
        "b": {"enum": [True, "x"]},
    },
    "required": ["a"],
    "additionalProperties": False,
}
LIST = {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}


@pytest.mark.parametrize(
    ("rule", "value", "expected"),
    [
        (OBJECT, {"a": 1}, True),
        (OBJECT, {"a": 3, "b": True}, True),
        (OBJECT, {"a": 4}, False),
        (OBJECT, {"a": True}, False),
        (OBJECT, {"a": 1, "b": 1}, False),
        (OBJECT, {"a": 1, "c": 1}, False),
        (OBJECT, {"b": "x"}, False),
        (OBJECT, [], False),
        (LIST, [True], True),
        (LIST, [], False),
        (LIST, [True, 1], False),
        ({"type": "string", "minLength": 1, "maxLength": 2}, "ab", True),
        ({"type": "string", "minLength": 1, "maxLength": 2}, "abc", False),
        ({"type": "string", "pattern": "^(yes|no)$"}, "yes!", False),
        ({"anyOf": [LIST, {"type": "null"}]}, None, True),
        ({"anyOf": [LIST, {"type": "null"}]}, 0, False),
    ],
)
def test_what_fits(rule: dict[str, Any], value: Any, expected: bool) -> None:
    assert fits(rule, value) is expected


def test_schemas_are_the_same_every_time_and_differ() -> None:
    assert rules(5) == rules(5)
    assert len({str(rule) for rule in rules(50)}) == 50
    assert schema(random.Random(1))["type"] == "object"


@pytest.mark.parametrize("kind", ["json", "regex", "grammar"])
def test_every_answer_drawn_from_masks_fits(kind: str) -> None:
    found = draw_answers(resolve_model("demo"), 25, kind)
    assert found["fitting"] == found["finished"] > 20 and not found["failed"]
    assert set(found["mask_ms"]) == {"p50", "p99", "max"}
