"""Tuning tables: tile sizes, warps and stages as JSON beside each operation.

The first of a table's `entries` whose `when` holds gives its `use`. A condition is a value, a list
of values, or {"least": a, "most": b}; the last entry has none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

FILE = "tuning.json"


@cache
def table(operation: str) -> Mapping[str, Any]:
    text = resources.files(f"pallas_kernels.{operation}").joinpath(FILE).read_text("utf-8")
    return json.loads(text)


def tuned(operation: str, **facts: Any) -> dict[str, Any]:
    """Settings of the first entry that matches these facts."""
    return dict(first_match(table(operation)["entries"], facts)["use"])


def first_match(entries: list[Mapping[str, Any]], facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """First entry whose conditions hold. Raises KeyError for a condition on an unknown fact,
    LookupError if no entry matches."""
    for entry in entries:
        conditions = entry.get("when", {})
        if unknown := set(conditions) - set(facts):
            raise KeyError(f"tuning entry {entry} asks for {unknown}; known are {sorted(facts)}")
        if all(holds(condition, facts[name]) for name, condition in conditions.items()):
            return entry
    raise LookupError(f"no tuning entry for {dict(facts)}")


def holds(condition: Any, value: Any) -> bool:
    if isinstance(condition, Mapping):
        return condition.get("least", value) <= value <= condition.get("most", value)
    return value in condition if isinstance(condition, list) else value == condition
