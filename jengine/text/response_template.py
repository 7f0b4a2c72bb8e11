"""A checkpoint's `response_template` in transformers' format.

In: its JSON. Out: literal marks that open and close reasoning, content and tool calls, and how
calls are encoded. Templates with regular expressions are refused: they come with a model, and
catastrophic backtracking could stop a server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from jengine.errors import ConfigError

THINKING, CONTENT, CALLS = "thinking", "content", "tool_calls"
_PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")


class _Field(msgspec.Struct, forbid_unknown_fields=True):
    open: str | list[str] | None = None
    close: str | list[str] | None = None
    content: str = "text"
    content_args: dict[str, Any] = {}
    repeats: bool = False
    join: str | None = None
    optional: bool = True
    transform: Any = None
    transform_each: bool = False


class _Template(msgspec.Struct, forbid_unknown_fields=True):
    fields: dict[str, _Field]
    start_anchor: str | list[str]
    version: int = 1
    defaults: dict[str, Any] = {}


@dataclass(frozen=True)
class Region:
    """A part of an answer; `opens` is empty for text outside all marks."""

    name: str
    opens: tuple[str, ...]
    closes: tuple[str, ...]
    transform: Any = None
    each: bool = False


@dataclass(frozen=True)
class ResponseTemplate:
    """Regions of an answer. `outside` has no marks; `anchors` begin an answer."""

    regions: tuple[Region, ...]
    outside: Region
    anchors: tuple[str, ...]

    def region_of(self, mark: str) -> Region:
        return next(region for region in self.regions if mark in region.opens)

    @property
    def opens(self) -> tuple[str, ...]:
        return tuple(mark for region in self.regions for mark in region.opens)


def load_response_template(given: Mapping[str, Any] | None) -> ResponseTemplate:
    """Load a tokenizer's template. Raises ConfigError."""
    if given is None:
        raise ConfigError(
            "The parser 'hf' needs a response_template in the model's tokenizer_config.json, and "
            "there is none. Choose the parser of the model's family."
        )
    try:
        template = msgspec.convert(dict(given), _Template)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"The response_template of this model cannot be used: {error}. Regular expressions "
            "(open_pattern, close_pattern) are not taken from models. Choose the parser of the "
            "model's family."
        ) from error
    regions = [_region(name, field) for name, field in template.fields.items()]
    outside = [region for region in regions if not region.opens]
    if len(outside) > 1 or any(region.name == CALLS for region in outside):
        raise ConfigError(
            "The response_template of this model has more than one field without an opening mark, "
            "or tool calls without one. Choose the parser of the model's family."
        )
    _marks([mark for region in regions for mark in (*region.opens, *_closes_outside(region))])
    return ResponseTemplate(
        tuple(region for region in regions if region.opens),
        outside[0] if outside else Region(CONTENT, (), ()),
        _marks(template.start_anchor),
    )


def _closes_outside(region: Region) -> tuple[str, ...]:
    return () if region.opens else region.closes


def _region(name: str, field: _Field) -> Region:
    kinds = {THINKING: "text", CONTENT: "text", CALLS: "json"}
    if kinds.get(name) != field.content or (field.content == "json" and field.content_args):
        raise ConfigError(
            f"The response_template of this model has a field {name!r} with content "
            f"{field.content!r} {field.content_args or ''}; expected thinking and content as text, "
            "tool_calls as plain json. Choose the parser of the model's family."
        )
    return Region(
        name, _marks(field.open), _marks(field.close), field.transform, field.transform_each
    )


def _marks(given: str | list[str] | None) -> tuple[str, ...]:
    marks = [given] if isinstance(given, str) else given or []
    others = [(a, b) for i, a in enumerate(marks) for j, b in enumerate(marks) if i != j]
    if not all(marks) or any(a in b for a, b in others):
        raise ConfigError(
            "The response_template of this model has marks that are empty or part of each other. "
            "Choose the parser of the model's family."
        )
    return tuple(marks)


def calls_of(region: Region, value: Any) -> list[tuple[str, Any]]:
    """(name, arguments) of each call in a region's JSON; empty if any is invalid."""
    if region.transform is not None:
        items = value if region.each and isinstance(value, list) else [value]
        scopes = [item if region.each and isinstance(item, dict) else {} for item in items]
        value = [
            _filled(region.transform, {"content": item, **scope})
            for item, scope in zip(items, scopes, strict=True)
        ]
    found = []
    for item in value if isinstance(value, list) else [value]:
        function = item.get("function") if isinstance(item, dict) else None
        if not isinstance(function, dict):
            return []
        name, arguments = function.get("name"), function.get("arguments")
        if not isinstance(name, str) or not name or arguments is None:
            return []
        found.append((name, arguments))
    return found


def _filled(transform: Any, scope: Mapping[str, Any]) -> Any:
    """A transform with placeholders filled in; None for missing values."""
    if isinstance(transform, dict):
        return {key: _filled(value, scope) for key, value in transform.items()}
    if isinstance(transform, list):
        return [_filled(value, scope) for value in transform]
    found = _PLACEHOLDER.fullmatch(transform) if isinstance(transform, str) else None
    if not found:
        return transform
    value: Any = scope
    for key in found[1].split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
