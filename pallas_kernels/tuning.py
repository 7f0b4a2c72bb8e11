"""Tuning tables: tile sizes, warps and stages of a kernel, as data beside the operation.

A table is a JSON object whose `entries` are tried in order; the first whose `when` holds gives its
`use`. A condition is a value, a list of values, or {"least": a, "most": b}; the last
entry has none.
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
    """The tuning table of `pallas_kernels.<operation>`."""
    text = resources.files(f"pallas_kernels.{operation}").joinpath(FILE).read_text("utf-8")
    return json.loads(text)


def tuned(operation: str, **facts: Any) -> dict[str, Any]:
    """The settings for a call of which these facts are known."""
    return dict(first_match(table(operation)["entries"], facts)["use"])


def first_match(entries: list[Mapping[str, Any]], facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first entry whose conditions hold. If there is none, the table is wrong."""
    for entry in entries:
        conditions = entry.get("when", {})
        if unknown := set(conditions) - set(facts):
            raise KeyError(f"tuning entry {entry} asks for {unknown}; known are {sorted(facts)}")
        if all(holds(condition, facts[name]) for name, condition in conditions.items()):
            return entry
    raise LookupError(f"no tuning entry for {dict(facts)}")


def holds(condition: Any, value: Any) -> bool:
    """Whether a value meets a condition."""
    if isinstance(condition, Mapping):
        return condition.get("least", value) <= value <= condition.get("most", value)
    return value in condition if isinstance(condition, list) else value == condition
