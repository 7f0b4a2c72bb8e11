"""Structured outputs: `StructuredOutputsParams`, and the `GrammarSpec` it becomes.

Names, defaults and rules of the parameters follow vLLM. The combination of fields is validated at
construction, the grammar when a request compiles it. Must not know tokens or compilers.
"""

from __future__ import annotations

import json as json_codec
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from jengine.errors import RequestError

NAME = "structured_outputs"
KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
ANY_OBJECT = '{"type": "object"}'


class GrammarSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The grammar of one request's answers, as plain data."""

    kind: str  # json, regex, choice, grammar or structural_tag
    text: str  # a JSON text, except for regex and grammar
    whitespace: bool = True  # json: allow whitespace between JSON tokens
    whitespace_pattern: str | None = None  # json: regex of that whitespace
    # The grammar starts after these tokens (the end of reasoning) were sampled; until then any are
    # allowed. Empty: from the first token.
    begins_after: tuple[int, ...] = ()

    @property
    def source(self) -> GrammarSpec:
        """Key of the compiled grammar: the spec without `begins_after`."""
        return msgspec.structs.replace(self, begins_after=()) if self.begins_after else self


@dataclass
class StructuredOutputsParams:
    """Exactly one of json, regex, choice, grammar, json_object and structural_tag."""

    json: str | Mapping[str, Any] | None = None  # a JSON schema
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None  # EBNF, GBNF or Lark
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None
    # Text after which the grammar starts, such as "</think>"; until then all tokens are allowed.
    # Tokenized on its own, so it should be a single (special) token.
    begins_after: str | None = None

    def __post_init__(self) -> None:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise RequestError(
                f"{NAME}: expected exactly one of {', '.join(KINDS)}; given: "
                f"{', '.join(given) or 'none of them'}."
            )
        self._check_types(given[0])

    @property
    def kind(self) -> str:
        """Name of the constraint that is set."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    def spec(self) -> GrammarSpec:
        """Convert to plain data for the core."""
        kind = self.kind
        if kind == "structural_tag":
            text, compact = str(self.structural_tag), self.disable_any_whitespace
            if self.disable_additional_properties:
                text = dumped(with_closed_schemas(parsed(f"{NAME}.structural_tag", text)))
            return GrammarSpec(kind=kind, text=text, whitespace=not compact)
        if kind not in ("json", "json_object"):
            value = getattr(self, kind)
            return GrammarSpec(kind=kind, text=value if kind != "choice" else dumped(value))
        schema = ANY_OBJECT if kind == "json_object" else self._schema()
        return GrammarSpec(
            kind="json",
            text=schema,
            whitespace=not self.disable_any_whitespace,
            whitespace_pattern=self.whitespace_pattern,
        )

    def _schema(self) -> str:
        text = self.json if isinstance(self.json, str) else dumped(self.json)
        if not self.disable_additional_properties:
            return text
        return dumped(without_additional_properties(parsed(f"{NAME}.json", text)))

    def _check_types(self, kind: str) -> None:
        value = getattr(self, kind)
        if kind == "json":
            fits = isinstance(value, (str, Mapping, bool))
        elif kind == "choice":
            fits = isinstance(value, (list, tuple)) and all(
                isinstance(item, str) and item for item in value
            )
            if fits and not value:
                raise RequestError(f"{NAME}.choice=[]: expected at least one string.")
        else:
            fits = value is True if kind == "json_object" else isinstance(value, str)
        if not fits:
            raise RequestError(f"{NAME}.{kind}={value!r:.80}: expected {EXPECTED[kind]}.")
        if isinstance(value, str) and not value.strip():
            raise RequestError(f"{NAME}.{kind} is empty: expected {EXPECTED[kind]}.")
        for name in ("whitespace_pattern", "begins_after"):
            text = getattr(self, name)
            if text is not None and (not isinstance(text, str) or not text):
                raise RequestError(f"{NAME}.{name}={text!r:.80}: expected text that is not empty.")

    def copy(self) -> StructuredOutputsParams:
        """An independent copy."""
        return replace(self)


def checked_structured(name: str, given: Any) -> StructuredOutputsParams:
    """Validate the type."""
    if not isinstance(given, StructuredOutputsParams):
        raise RequestError(
            f"{name} is a {type(given).__name__}; expected "
            "StructuredOutputsParams(json=..., regex=..., choice=... or grammar=...)."
        )
    return given


EXPECTED = {
    "json": "a JSON schema as a dict or as text",
    "regex": "a regular expression as text",
    "choice": "a list of strings that are not empty",
    "grammar": "a grammar (EBNF, GBNF or Lark) as text",
    "json_object": "true",
    "structural_tag": "a JSON text with structures and triggers",
}


@dataclass(frozen=True, kw_only=True)
class StructuredOutputsDefaults:
    """Engine-wide defaults of structured output."""

    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    # Grammars start after the reasoning found by this parser; None: from the first token.
    reasoning_parser: str | None = None

    def applied(self, params: StructuredOutputsParams) -> StructuredOutputsParams:
        """Return a request's parameters with the engine-wide defaults applied."""
        switches = ("disable_any_whitespace", "disable_additional_properties")
        return replace(
            params, **{name: getattr(params, name) or getattr(self, name) for name in switches}
        )


def dumped(value: Any) -> str:
    """Serialise to JSON. Raises RequestError."""
    try:
        return json_codec.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{NAME}: not a JSON value: {error}.") from error


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is not JSON")


def parsed(name: str, text: str) -> Any:
    """Decode JSON text. Raises RequestError that says where it is broken."""
    try:
        return json_codec.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{name} is not JSON: {error}.") from error


# JSON schema keywords that map names to schemas, and those whose values are schemas.
NAMED_SCHEMAS = (
    "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies",
)  # fmt: skip
SCHEMAS = (
    "additionalProperties", "unevaluatedProperties", "propertyNames", "contains", "not", "if",
    "then", "else", "items", "additionalItems", "prefixItems", "allOf", "anyOf", "oneOf",
)  # fmt: skip


def each_schema(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Apply `change` to every object schema in a schema, itself included."""
    if isinstance(schema, list):
        return [each_schema(item, change) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for keyword, value in schema.items():
        if keyword in SCHEMAS:
            found[keyword] = each_schema(value, change)
        elif keyword in NAMED_SCHEMAS and isinstance(value, dict):
            found[keyword] = {name: each_schema(item, change) for name, item in value.items()}
    return change(found)


def without_additional_properties(schema: Any) -> Any:
    """Set additionalProperties to false in objects with named properties, unless the schema sets
    it."""
    return each_schema(schema, _closed)


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    named = any(isinstance(schema.get(key), dict) for key in ("properties", "patternProperties"))
    return {"additionalProperties": False, **schema} if named else schema


def without_any_names(schema: Any) -> Any:
    """Remove trivial `propertyNames` constraints, which generators write for maps."""
    every = ({}, True, {"type": "string"})
    return each_schema(
        schema,
        lambda one: {
            name: value
            for name, value in one.items()
            if name != "propertyNames" or value not in every
        },
    )


def at_place(schema: Any, place: str) -> Any:
    """Rewrite a schema's local pointers for embedding it at a JSON pointer. Anchors, and references
    in a schema with an `$id`, hold wherever it is embedded."""

    def moved(one: dict[str, Any]) -> dict[str, Any]:
        target = one.get("$ref")
        local = isinstance(target, str) and (target == "#" or target.startswith("#/"))
        return {**one, "$ref": place + target[1:]} if local else one

    return schema if "$id" in schema else each_schema(schema, moved)


def with_closed_schemas(part: Any) -> Any:
    """A structural tag whose schemas have `additionalProperties: false`."""
    if isinstance(part, list):
        return [with_closed_schemas(item) for item in part]
    if not isinstance(part, dict):
        return part
    return {
        name: without_additional_properties(value)
        if name in ("schema", "json_schema")
        else with_closed_schemas(value)
        for name, value in part.items()
    }
