"""Fuzzed request bodies, generated from the server's OpenAPI schema; each is reproducible by its
number.

In: the document of /openapi.json, a seed. Out: a route and the bytes of a body. What an answer
costs the engine is kept small: its queue bounds that, and it is not what is searched.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Json = Any
LONG = 2_000_000  # characters of the longest text
NUMBERS = (
    -1, 0, 1, 2, 127, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 2**70, 10**400,
    0.5, -0.0, 1e308, -1e308, 1e-308, 1e15,
)  # fmt: skip
ALPHABETS = (
    "a", "ab cd", " ", "\n\t ", "0123456789", "\u00e9\u4e2d\U0001f600", "\u202e\u200d", "</s><s>",
    "[{\"", "\\", "%", "{{ {% x", "<tool_call>{", "\0", "aA\u0301",
)  # fmt: skip
REFERENCES = ("#", "#/$defs/a", "#/properties/a", "http://127.0.0.1/", "file:///etc/passwd")
# What makes an answer long, or many: fields -> the most that a request may ask for here.
COSTS = {
    "max_tokens": 4, "max_completion_tokens": 4, "max_output_tokens": 16, "min_tokens": 4, "n": 2,
    "best_of": 2, "beam_width": 2, "num_beams": 2,
}  # fmt: skip


class Case(NamedTuple):
    """One fuzzed request."""

    path: str
    body: bytes
    leaves: bool  # whether its client leaves before it is answered


class Bodies:
    """Generates requests for all routes of a server that take a body."""

    def __init__(self, document: Mapping[str, Any], seed: int) -> None:
        self._schemas = document["components"]["schemas"]
        self._seed = seed
        self.routes: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
        for path, methods in document["paths"].items():
            content = methods.get("post", {}).get("requestBody", {}).get("content", {})
            told = content.get("application/json")
            if told and "{" not in path:
                self.routes[path] = (self._resolved(told["schema"]), told["example"])

    def case(self, number: int) -> Case:
        """The request with this number; deterministic."""
        rng = random.Random(f"{self._seed}-{number}")  # noqa: S311 - not for secrets
        path = rng.choice(sorted(self.routes))
        schema, example = self.routes[path]
        body: dict[str, Any] = dict(example)
        fields = schema.get("properties", {})
        for name in rng.sample(sorted(fields), min(len(fields), rng.choice((1, 1, 2, 3)))):
            body[name] = self._value(rng, fields[name], 0)
        if rng.random() < 0.1:
            body["x" * rng.choice((1, 1000))] = anything(rng, 0)
        data = json.dumps(cheap(body)).encode()
        return Case(path, broken(rng, data), rng.random() < 0.1)

    def _resolved(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Follow a schema's $ref."""
        name = schema.get("$ref", "").rpartition("/")[2]
        return dict(self._schemas[name] if name else schema)

    def _value(self, rng: random.Random, schema: Mapping[str, Any], depth: int) -> Json:
        """A value for a field: valid, at or beyond its limits, or of another type."""
        if depth > 4 or rng.random() < 0.35:
            return anything(rng, 0)
        told = self._resolved(schema)
        if "anyOf" in told:
            return self._value(rng, rng.choice(told["anyOf"]), depth + 1)
        if "enum" in told:
            return rng.choice([*told["enum"], "no such"])
        if told.get("type") == "object":
            inner = told.get("properties") or {"a": {}, "type": {}, "content": {}}
            names = rng.sample(sorted(inner), min(len(inner), 3))
            return {name: self._value(rng, inner[name], depth + 1) for name in names}
        if told.get("type") == "array":
            one = self._value(rng, told.get("items") or {}, depth + 1)
            return copies(rng, one)
        return self._plain(rng, told)

    def _plain(self, rng: random.Random, told: Mapping[str, Any]) -> Json:
        kind = told.get("type")
        limits = [told[name] for name in ("minimum", "maximum") if name in told]
        if kind in ("integer", "number"):
            near = [one + step for one in limits for step in (-1, 0, 1)]
            return rng.choice([*near, *NUMBERS])
        if kind == "string":
            return text(rng)
        return rng.choice((True, False, None, anything(rng, 0)))


def text(rng: random.Random) -> str:
    """A string, from empty to very long."""
    size = rng.choice((0, 1, 2, 10, 100, 100, 1000, 1000, 20_000, 20_000, 200_000, LONG))
    alphabet = rng.choice(ALPHABETS)
    piece = "".join(rng.choices(alphabet, k=min(size, 997)))
    return (piece * (size // max(len(piece), 1) + 1))[:size]


def anything(rng: random.Random, depth: int) -> Json:
    """An arbitrary JSON value."""
    makers: tuple[Callable[[], Json], ...] = (
        lambda: rng.choice(NUMBERS),
        lambda: text(rng),
        lambda: rng.choice((None, True, False)),
        lambda: copies(rng, anything(rng, depth + 1)) if depth < 3 else [],
        lambda: {text(rng)[:100]: anything(rng, depth + 1)} if depth < 3 else {},
        lambda: nested(rng.choice((10, 70, 900))),
        lambda: {"$ref": rng.choice(REFERENCES), "$defs": {"a": {"$ref": "#/$defs/a"}}},
    )
    return rng.choice(makers)()


def copies(rng: random.Random, one: Json) -> list[Json]:
    """A list repeating a value, no longer than the longest string."""
    most = LONG // (len(json.dumps(one)) + 1)
    return [one] * min(rng.choice((0, 1, 2, 5, 5, 2000, 500_000)), most)


def nested(levels: int) -> Json:
    found: Json = []
    for _ in range(levels):
        found = [found]
    return found


def cheap(body: dict[str, Any]) -> dict[str, Any]:
    """Remove fields that would only make the engine generate a lot."""
    for name, most in COSTS.items():
        value = body.get(name)
        if isinstance(value, int | float) and value > most:
            body[name] = most
    return body


def broken(rng: random.Random, data: bytes) -> bytes:
    """Encode a body: mostly intact, else truncated, altered, duplicated or empty."""
    if not data or rng.random() < 0.85:
        return data
    at = rng.randrange(len(data))
    junk = bytes(rng.randrange(256) for _ in range(3))
    return rng.choice((data[:at], data[:at] + junk + data[at:], data * 2, b"", junk, b"[" * 20_000))
