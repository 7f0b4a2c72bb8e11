"""StructuredOutputsParams: what is accepted, and the plain data it becomes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from jengine.errors import RequestError, UnsupportedFeature
from jengine.sampling_params import SamplingParams
from jengine.structured_outputs import (
    GrammarSpec,
    StructuredOutputsParams,
    at_place,
    without_additional_properties,
    without_any_names,
)

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"json": OBJECT}, "json", json.dumps(OBJECT)),
        ({"json": json.dumps(OBJECT)}, "json", json.dumps(OBJECT)),
        ({"json_object": True}, "json", '{"type": "object"}'),
        ({"regex": "a+"}, "regex", "a+"),
        ({"choice": ["ja", "nein"]}, "choice", '["ja", "nein"]'),
        ({"grammar": 'root ::= "a"'}, "grammar", 'root ::= "a"'),
        ({"structural_tag": "{}"}, "structural_tag", "{}"),
    ],
)
def test_each_kind_becomes_plain_data(given: dict[str, Any], kind: str, text: str) -> None:
    spec = StructuredOutputsParams(**given).spec()
    assert (spec.kind, spec.text) == (kind, text)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=GrammarSpec) == spec


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "expected exactly one of json, regex, choice.*none of them"),
        ({"json": {}, "regex": "a"}, "given: json, regex"),
        ({"json": 3}, r"structured_outputs.json=3: expected a JSON schema"),
        ({"json_object": False}, "expected true"),
        ({"regex": 3}, "a regular expression as text"),
        ({"regex": " "}, "regex is empty"),
        ({"choice": []}, "at least one string"),
        ({"choice": ["a", 1]}, "a list of strings"),
        ({"choice": "ab"}, "a list of strings"),
        ({"json": {"a": object()}}, "not a JSON value"),
        ({"regex": "a", "begins_after": ""}, "begins_after"),
        ({"json": {}, "whitespace_pattern": 3}, "whitespace_pattern"),
    ],
)
def test_what_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        StructuredOutputsParams(**given).spec()


def test_objects_can_be_closed() -> None:
    schema = {"type": "object", "properties": {"a": OBJECT, "properties": {"type": "string"}},
              "$defs": {"x": {"anyOf": [OBJECT]}}}  # fmt: skip
    closed = without_additional_properties(schema)
    assert closed["additionalProperties"] is False
    assert closed["properties"]["a"]["additionalProperties"] is False
    assert closed["properties"]["properties"] == {"type": "string"}, "a name, not a keyword"
    assert closed["$defs"]["x"]["anyOf"][0]["additionalProperties"] is False
    assert "additionalProperties" not in schema, "the user's schema is left alone"
    open_one = {**OBJECT, "additionalProperties": True}
    assert without_additional_properties(open_one) == open_one


def test_names_that_may_be_anything_are_left_out() -> None:
    free = {"type": "object", "propertyNames": {"type": "string"}}
    named = {"type": "object", "propertyNames": {"pattern": "a"}}
    schema = {"properties": {"propertyNames": free, "b": named}}
    assert without_any_names(schema) == {
        "properties": {"propertyNames": {"type": "object"}, "b": named}
    }


def test_references_move_with_their_schema() -> None:
    schema = {"definitions": {"x": {"anyOf": [{"$ref": "#"}, {"$ref": "http://a#/b"}]}},
              "properties": {"$ref": {"$ref": "#/definitions/x"}}}  # fmt: skip
    assert at_place(schema, "#/items") == {
        "definitions": {"x": {"anyOf": [{"$ref": "#/items"}, {"$ref": "http://a#/b"}]}},
        "properties": {"$ref": {"$ref": "#/items/definitions/x"}},
    }
    for fixed in ({"$ref": "#anchor"}, {"$id": "urn:x", "items": {"$ref": "#/definitions/x"}}):
        assert at_place(fixed, "#/items") == fixed


def test_sampling_parameters_keep_their_own_copy() -> None:
    structured = StructuredOutputsParams(regex="a")
    params = SamplingParams(structured_outputs=structured).settled()
    structured.regex = "b"
    assert params.structured_outputs == StructuredOutputsParams(regex="a")


def test_other_types_are_refused() -> None:
    with pytest.raises(RequestError, match="structured_outputs is a dict; expected Structured"):
        SamplingParams(structured_outputs={"regex": "a"})  # type: ignore[arg-type]
    with pytest.raises(UnsupportedFeature, match="StructuredOutputsParams"):
        SamplingParams(guided_decoding="a")  # type: ignore[call-arg]


def test_requests_with_equal_sources_share_what_is_compiled() -> None:
    spec = StructuredOutputsParams(regex="a").spec()
    later = msgspec.structs.replace(spec, begins_after=(1, 2))
    assert later != spec and later.source == spec.source == spec
