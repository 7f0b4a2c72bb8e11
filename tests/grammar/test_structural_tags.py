"""Structural tags in both forms: which texts they accept, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jengine.errors import RequestError
from jengine.grammar.guidance import llguidance_grammar
from jengine.grammar.structural_tags import ascii_classes, lark_of
from jengine.structured_outputs import StructuredOutputsParams
from tests.grammar.letters import ids, matcher

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
JSON = {"type": "json_schema", "json_schema": {**SCHEMA, "additionalProperties": False}}
FREE = {"type": "any_text"}
X = {"type": "const_string", "value": "x"}
TAG_A = {"type": "tag", "begin": "<f=a>", "content": JSON, "end": "</f>"}
TAG_B = {"type": "tag", "begin": "<f=b>", "content": FREE, "end": ["</f>", "</g>"]}
CALL = '<f=a>{"a":1}</f>'
TRIGGERED = {"type": "triggered_tags", "triggers": ["<f="], "tags": [TAG_A, TAG_B]}
SEPARATED = {"type": "tags_with_separator", "separator": ",", "tags": [TAG_A, TAG_B]}


def params(tag: Any, **more: Any) -> StructuredOutputsParams:
    return StructuredOutputsParams(structural_tag=json.dumps(tag), **more)


def accepts(form: Any, text: str, **more: Any) -> bool:
    """Whether a text is a whole answer."""
    one = matcher(params({"type": "structural_tag", "format": form}, **more).spec())
    return one.advance(ids(text)) and one._grammar.is_accepting()


@pytest.mark.parametrize(
    ("form", "whole", "wrong"),
    [
        (X, "x", "xx"),
        (JSON, '{"a": 12}', '{"b": 1}'),
        (FREE, "any <f=a>", None),
        ({"type": "regex", "pattern": "[a-c/]{3}"}, "ab/", "abd"),
        ({"type": "regex", "pattern": r"a\/b/c"}, "a/b/c", "a/b"),
        ({"type": "regex", "pattern": r"[\d\-]{2}\D\s"}, "1-a ", "1-1 "),
        ({"type": "grammar", "grammar": 'root ::= "q" [0-9]'}, "q1", "qq"),
        ({"type": "sequence", "elements": [X, JSON]}, 'x{"a":1}', '{"a":1}'),
        ({"type": "sequence", "elements": [FREE, TAG_A]}, f"why {CALL}", f"why {CALL}!"),
        ({"type": "sequence", "elements": [FREE, X]}, "why not x", "why not y"),
        ({"type": "or", "elements": [X, JSON]}, '{"a":1}', "y"),
        (TAG_A, CALL, CALL[:-1]),
        (TAG_B, "<f=b>free</g>", "<f=b>free"),
        ({"type": "optional", "content": X}, "", "xx"),
        ({"type": "star", "content": X}, "xxx", "xxy"),
        ({"type": "plus", "content": X}, "x", ""),
        ({"type": "repeat", "min": 2, "max": -1, "content": X}, "xxxx", "x"),
        ({"type": "repeat", "min": 2, "max": 3, "content": X}, "xxx", "xxxx"),
        (TRIGGERED, f"say <f=b>free</f> and {CALL} end", "say <f=c>"),
        (TRIGGERED, "no call", None),
        ({**TRIGGERED, "at_least_one": True}, f"so {CALL} end", "no call"),
        ({**TRIGGERED, "stop_after_first": True}, f"so {CALL}", f"so {CALL} end"),
        (SEPARATED, f"{CALL},<f=b>x</f>,{CALL}", f"{CALL}{CALL}"),
        (SEPARATED, "", f"{CALL},"),
        ({**SEPARATED, "at_least_one": True}, CALL, ""),
        ({**SEPARATED, "stop_after_first": True}, CALL, f"{CALL},{CALL}"),
    ],
)
def test_what_parts_accept(form: Any, whole: str, wrong: str | None) -> None:
    assert accepts(form, whole)
    assert wrong is None or not accepts(form, wrong)


def test_classes_of_characters_are_of_ascii() -> None:
    assert ascii_classes(r"\\d\d[\w\-]\D") == r"\\d[0-9][[0-9A-Za-z_]\-][^0-9]"


def test_settings_of_json_hold_inside_tags() -> None:
    assert accepts(JSON, '{"a": 1}') and not accepts(JSON, '{"a": 1}', disable_any_whitespace=True)
    open_schema = {"type": "json_schema", "json_schema": SCHEMA}
    more = '{"a":1,"b":2}'
    assert accepts(open_schema, more)
    assert not accepts(open_schema, more, disable_additional_properties=True)


def test_tags_take_what_plain_fields_take() -> None:
    """Names of properties that are free, marks before `start`, a schema's own settings."""
    free = {**SCHEMA, "propertyNames": {"type": "string"}}
    assert accepts({"type": "json_schema", "json_schema": free}, '{"a": 1}')
    assert accepts({"type": "grammar", "grammar": '?start: "a"'}, "a")
    close = {**SCHEMA, "x-guidance": {"whitespace_flexible": False}}
    assert not accepts({"type": "json_schema", "json_schema": close}, '{"a": 1}')


def test_lark_is_found_behind_many_blank_lines() -> None:
    """Within a moment: llguidance's own search would take ten minutes."""
    for text in ('root ::= "a"', '?start: "a"', 'start: "a"'):
        assert "start" in lark_of("\n" * 300_000 + text)


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("x", "format.type is None; expected one of const_string"),
        ({"type": "token", "token": 5}, "format.type is 'token'; expected one of"),
        ({"type": "const_string"}, "format.value=None: expected text"),
        ({**FREE, "excludes": ["a"]}, "format.excludes is not built yet"),
        ({**JSON, "style": "qwen_xml"}, "only json is built"),
        ({"type": "json_schema", "json_schema": 3}, "expected a JSON schema"),
        ({"type": "sequence", "elements": []}, "format.elements=.*not an empty one"),
        ({"type": "sequence", "elements": [FREE, JSON]}, "elements.1. follows any_text"),
        ({**TAG_A, "end": 3}, "format.end=3"),
        ({**TRIGGERED, "triggers": ["<g"]}, "tags.0..begin='<f=a>' starts with none"),
        ({"type": "repeat", "min": 3, "max": 1, "content": X}, "expected min and max"),
    ],
)
def test_what_is_refused(form: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        llguidance_grammar(params({"type": "structural_tag", "format": form}).spec())
