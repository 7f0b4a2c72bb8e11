"""Profiles: the table of operations, annotated steps, and arithmetic on made-up time lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from jax.profiler import ProfileData

from jengine import LLM
from jengine.api.profile_table import Operation, ProfileTable, operations_of, own_times
from jengine.errors import RequestError
from jengine.metrics.cost import StepCost
from jengine.runner.profiler import NOTHING, PROFILER
from tests.api.engines import SMALL_DEMO


class Event(NamedTuple):
    name: str
    start_ns: float
    duration_ns: float


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("demo", **SMALL_DEMO, skip_tokenizer_init=True) as one:
        yield one


@pytest.mark.slow
def test_a_profile_names_operations_and_steps(llm: LLM, tmp_path: Path) -> None:
    profile = llm.profile(tmp_path, steps=5)
    assert profile.steps == 5 and profile.seconds > 0
    assert profile.operations[0].seconds >= profile.operations[-1].seconds
    assert 0 < profile.busy < 2 * 8 * profile.seconds
    table = str(profile)
    assert "5 steps of" in table and "TFLOP/s" in table and str(tmp_path) in table
    assert profile.operations[0].name[:56] in table
    (file,) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    found = [
        dict(event.stats)
        for plane in ProfileData.from_file(str(file)).planes
        for line in plane.lines
        for event in line.events
        if event.name == "engine_step"
    ]
    numbers = [step["step_num"] for step in found]
    assert len(numbers) >= 5 and numbers == sorted(numbers)
    assert {str(step["bucket"]) for step in found} <= {
        str(bucket) for bucket, _ in llm.ledger.entries
    }


def test_steps_are_not_annotated_while_nothing_is_recorded(llm: LLM) -> None:
    bucket = next(iter(llm.ledger.entries))[0]
    assert PROFILER.step(1, bucket) is NOTHING and PROFILER.pack() is NOTHING


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"steps": 10**6}, {"batch": 0}])
def test_what_no_context_holds_is_refused(llm: LLM, tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(RequestError, match="expected 1 to 240 steps"):
        llm.profile(tmp_path, **wrong)  # type: ignore[arg-type]


def test_an_operation_does_not_count_what_it_calls() -> None:
    events = [
        Event("inner", 20, 30), Event("outer", 0, 100), Event("inner", 60, 10),
        Event("innermost", 30, 5), Event("after", 100, 7),
    ]  # fmt: skip
    found: dict[str, float] = {}
    for name, seconds in own_times(events):
        found[name] = found.get(name, 0.0) + seconds * 1e9
    assert {name: round(own) for name, own in found.items()} == {
        "outer": 60, "inner": 35, "innermost": 5, "after": 7,
    }  # fmt: skip


def test_a_long_table_says_what_it_leaves_out() -> None:
    operations = tuple(Operation(f"op {n}", 1, 1e-3) for n in range(25))
    table = str(ProfileTable("/there", 2, 0.5, StepCost(1e12, 4e9, 1e9), operations))
    assert "2 steps of 250.00 ms; estimated 2.000 TFLOP/s and 10.00 GB/s per device" in table
    assert "5 more, 5.000 ms" in table


def test_a_folder_without_a_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="has no trace"):
        operations_of(str(tmp_path))
