"""The table of request parameters, and what is made of it or must agree with it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

import jengine
from jengine.errors import RequestError
from jengine.plan import RowSampling
from jengine.request_parameters import Given, Parameter, declared, given_on, struct_of
from jengine.sampling_params import PARAMETERS, SamplingParams
from jengine.weights.generation_config import GENERATION_KEYS, SAMPLING_NUMBERS

SERVER = Path(jengine.__file__).parent / "server"


@dataclass
class Example:
    """A table of its own."""

    share: Annotated[
        float, Parameter(above=0, most=1, on=Given.TEXT | Given.AUDIO, help="so much")
    ] = 1.0
    count: Annotated[int | None, Parameter(least=2, on=Given.TEXT)] = None
    switch: Annotated[bool, Parameter()] = False


TABLE = declared(Example)


def test_bodies_of_requests_have_the_fields_and_ranges_of_the_table() -> None:
    body = struct_of(TABLE, Given.TEXT)
    shape = msgspec.json.schema(body)["$defs"]["Given"]["properties"]
    assert shape["share"]["anyOf"][0] == {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
    assert shape["count"]["anyOf"][0] == {"type": "integer", "minimum": 2}
    assert body.__struct_fields__ == ("share", "count")
    assert struct_of(TABLE, Given.AUDIO).__struct_fields__ == ("share",)
    assert msgspec.json.decode(b'{"share": null}', type=body) == body()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("share", 0, r"share=0: expected a number above 0 and at most 1 \(1 is off\)"),
        ("share", 1.5, "share=1.5: expected a finite number from 0 to 1"),
        ("share", None, "share=None: expected a number"),
        ("count", 1, "count=1: expected an integer at least 2"),
        ("switch", 1, "switch=1: expected True or False"),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        TABLE[name].checked(name, value)
    assert TABLE["count"].checked("count", None) is None


def test_every_field_is_in_the_table_but_the_one_that_is_settled_by_others() -> None:
    assert {one.name for one in fields(SamplingParams)} - {*PARAMETERS} == {
        "skip_reading_prefix_cache"
    }


def test_rows_have_what_steps_read() -> None:
    assert {*given_on(PARAMETERS, Given.ROW)} <= {*RowSampling.__struct_fields__}


def test_a_models_generation_config_keeps_to_the_table() -> None:
    own = {*GENERATION_KEYS} - {"eos_token_id", "max_new_tokens"}
    assert own <= {*PARAMETERS}
    for name, limits in SAMPLING_NUMBERS.items():
        if name != "temperature":  # files may say more than requests
            told = PARAMETERS[name]
            assert limits.get("maximum") == told.most
            assert limits.get("above_minimum", False) == (told.above == 0)


@pytest.mark.parametrize(
    ("file", "place"),
    [("formats/sampling_fields.py", Given.TEXT), ("audio/fields.py", Given.AUDIO)],
)
def test_what_type_checkers_see_of_a_body_is_there(file: str, place: Given) -> None:
    """Under TYPE_CHECKING stand the fields that are read by name; bodies are made of the table."""
    tree = ast.parse((SERVER / file).read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    seen = [
        node.target.id
        for block in blocks
        for node in ast.walk(ast.Module(block.body, []))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    assert seen and {*seen} <= {*given_on(PARAMETERS, place)}
