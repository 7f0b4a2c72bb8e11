"""GET /openapi.json, generated from the route table and the structs that bodies are decoded to.

In: the table of routes, an example per body type. Out: an OpenAPI document.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from jengine.server.errors import ErrorBody
from jengine.server.http.auth import Access
from jengine.server.version import VERSION

REFERENCE = "#/components/schemas/{name}"


class Described(Protocol):
    """Fields of a route that the OpenAPI document needs."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def access(self) -> Access: ...
    @property
    def handler(self) -> Any: ...
    @property
    def body(self) -> type[msgspec.Struct] | None: ...


Examples = Mapping[type[msgspec.Struct], dict[str, Any]]
Required = Mapping[type[msgspec.Struct], Sequence[str]]


def document(routes: Iterable[Described], examples: Examples, required: Required) -> dict[str, Any]:
    """Build the OpenAPI document.

    Args:
        required: fields that the checks require though decoding does not.
    """
    routes = list(routes)
    bodies = [route.body for route in routes if route.body is not None]
    schemas, components = msgspec.json.schema_components(
        [*bodies, ErrorBody], ref_template=REFERENCE
    )
    known = dict(zip(bodies, schemas, strict=False))
    for kind, names in required.items():
        require(components[kind.__name__], names)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = route.path.replace(":path}", "}")
        body = None
        if route.body is not None:
            body = {"schema": known[route.body], "example": examples[route.body]}
        paths.setdefault(path, {})[route.method.lower()] = operation(route, path, body)
    return {
        "openapi": "3.1.0",
        "info": {"title": "jengine", "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def require(schema: dict[str, Any], names: Sequence[str]) -> None:
    """Mark fields of a schema as required and not nullable."""
    schema["required"] = [*schema.get("required", ()), *names]
    for name in names:
        told = schema["properties"][name]
        kinds = [one for one in told["anyOf"] if one != {"type": "null"}]
        schema["properties"][name] = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}


def operation(route: Described, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
    """OpenAPI's operation object of one route and method."""
    error = {"application/json": {"schema": {"$ref": REFERENCE.format(name="ErrorBody")}}}
    found: dict[str, Any] = {
        "summary": " ".join((route.handler.__doc__ or "").partition("\n\n")[0].split()),
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{path}").strip("_"),
        "responses": {
            "200": {"description": "The answer."},
            "default": {"description": "An error.", "content": error},
        },
        "security": [] if route.access is Access.PUBLIC else [{"key": []}],
    }
    if names := re.findall(r"{(\w+)}", path):
        found["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    if body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": body}}
    return found
