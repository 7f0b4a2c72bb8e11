"""The measurement of a request's journey counts what it says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import jengine
from jengine.bench.journey import followed, lines_in, measure
from jengine.errors import nearest_name
from jengine.request_parameters import check_all
from jengine.sampling_params import SamplingParams

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
    with followed() as found:
        nearest_name("x", ())
    assert found == ({("jengine/errors.py", nearest_name.__code__.co_firstlineno)}, set())


def test_a_call_into_another_file_is_a_switch_also_behind_code_of_others() -> None:
    with followed() as found:
        SamplingParams(max_tokens=3)
    begins = SamplingParams.__post_init__.__code__.co_firstlineno
    table = "jengine/request_parameters.py"
    checked = check_all.__code__.co_firstlineno
    assert (("jengine/sampling_params.py", begins), (table, checked)) in found.switches
    assert all(begin != end for (begin, _), (end, _) in found.switches)


@pytest.mark.slow
def test_a_generate_passes_the_rooms_in_no_more_lines_than_the_tour_says() -> None:
    found = measure()
    assert {"scheduler", "kvcache", "runner", "engine", "text"} <= set(found["host_by_room"])
    assert {"models", "layers", "sampling"} <= set(found["step_by_room"])
    assert found["host_lines"] == sum(found["host_by_room"].values()) > 100
    assert not {"models", "layers"} & set(found["host_by_room"])
    # A ceiling far above the code would hold nothing: lower it with the code.
    assert 0.95 * said("lines on the host") < found["host_lines"] <= said("lines on the host")
    steps = said("lines in the traced step")
    assert 0.95 * steps < found["step_lines"] <= steps
    switches = said("calls into another file")
    assert 0.95 * switches < found["host_switches"] <= switches


def said(figure: str) -> int:
    """A figure of the tour's table, as it is now."""
    tour = (Path(jengine.__file__).parent / "README.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| {figure} \| [\d,–]+ \| ([\d,]+) \|$", tour, re.MULTILINE)
    assert row is not None
    return int(row[1].replace(",", ""))
