"""Output constraints (`response_format`, `structured_outputs`) as StructuredOutputsParams.

In: these fields. Out: parameters, or an error that names the field. Must not know how grammars are
compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Protocol

import msgspec

from jengine.errors import RequestError, nearest_name
from jengine.server.errors import ApiError
from jengine.structured_outputs import StructuredOutputsParams

KINDS = ("text", "json_object", "json_schema", "structural_tag")
KNOWN = tuple(field.name for field in fields(StructuredOutputsParams))


class FormatFields(Protocol):
    """Fields that constrain the answer: response_format and vLLM's structured outputs."""

    response_format: dict[str, Any] | None
    structured_outputs: dict[str, Any] | None


def structured_outputs(request: FormatFields) -> StructuredOutputsParams | None:
    """Parameters of the requested constraint; None for free text."""
    of_format = _of_format(request.response_format)
    given = request.structured_outputs
    if given is None:
        return of_format
    if of_format is not None:
        raise ApiError(
            400,
            "response_format and structured_outputs both say what the answer must look like. Send "
            "one of them.",
            param="structured_outputs",
        )
    return _made("structured_outputs", given)


def format_field(request: FormatFields) -> str:
    """Name of the field that holds the constraint, for error messages."""
    return "structured_outputs" if request.structured_outputs is not None else "response_format"


def _of_format(given: Mapping[str, Any] | None) -> StructuredOutputsParams | None:
    if given is None:
        return None
    kind = given.get("type")
    if kind not in KINDS:
        raise ApiError(
            400,
            f"response_format.type is {kind!r:.80}; expected one of {', '.join(KINDS)}.",
            param="response_format.type",
        )
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    if kind == "structural_tag":
        return _made("response_format", {"structural_tag": msgspec.json.encode(given).decode()})
    return _of_schema(given.get("json_schema"))


def _of_schema(given: Any) -> StructuredOutputsParams:
    """Unwrap OpenAI's `json_schema` object to the schema itself."""
    where = "response_format.json_schema"
    if given is None:
        raise ApiError(
            400, "response_format.type is json_schema, but there is no json_schema.", param=where
        )
    schema = given.get("schema") if isinstance(given, dict) else None
    if not isinstance(schema, (dict, bool)):
        raise ApiError(
            400, f"{where}: expected {{'name': ..., 'schema': {{...}}}} with a JSON schema.",
            param=where,
        )  # fmt: skip
    return _made("response_format", {"json": schema})


def _made(field: str, given: Mapping[str, Any]) -> StructuredOutputsParams:
    for name in given:
        if name not in KNOWN:
            hint = nearest_name(name, KNOWN) or f" Known: {', '.join(KNOWN)}."
            raise ApiError(400, f"{field} has no field {name!r:.80}.{hint}", param=field)
    try:
        return StructuredOutputsParams(**given)
    except RequestError as error:
        raise ApiError(400, str(error), param=field) from error
