"""The measurement of a request's journey counts what it says."""

from __future__ import annotations

import ast

import pytest

from jengine.bench.journey import functions_run, lines_in, measure
from jengine.errors import nearest_name

SOURCE = """
def called(x):
    \"\"\"Doc.\"\"\"
    return x


@decorator
def decorated():
    def inner():
        pass
    return 1
"""


def test_a_function_counts_with_its_decorators_and_its_whole_text() -> None:
    tree = ast.parse(SOURCE)
    assert lines_in(tree, {2}) == {2, 3, 4}
    assert lines_in(tree, {7}) == set(range(7, 12))
    assert lines_in(tree, {1}) == set()


def test_only_what_is_called_is_seen() -> None:
    with functions_run() as functions:
        nearest_name("x", ())
    assert functions == {("jengine/errors.py", nearest_name.__code__.co_firstlineno)}


@pytest.mark.slow
def test_a_generate_passes_the_rooms() -> None:
    found = measure(new_tokens=2)
    assert {"scheduler", "kvcache", "runner", "engine", "text"} <= set(found["host_by_room"])
    assert {"models", "layers", "sampling"} <= set(found["step_by_room"])
    assert found["host_lines"] == sum(found["host_by_room"].values()) > 100
    assert not {"models", "layers"} & set(found["host_by_room"])
