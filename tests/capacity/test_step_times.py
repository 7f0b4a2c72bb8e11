"""Seconds per step: several at once are those of one after the other, to the bit."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jengine.capacity.accelerators import ACCELERATORS
from jengine.capacity.device_layout import DeviceLayout
from jengine.capacity.paper import paper_plan
from jengine.capacity.simulation.paper_kind import ModelTimes
from jengine.capacity.simulation.step_times import StepLoad, StepTimes, pure_decode, stepwise
from jengine.capacity.simulation.table_times import TableTimes

ROWS, PREFILL, CONTEXTS = [0, 1, 2, 4, 7], [0, 32, 64, 480], [32, 128, 494]


def table(contexts: list[int] = CONTEXTS) -> TableTimes:
    """Times that nothing but the table tells."""
    shape = (len(ROWS), len(PREFILL), len(contexts))
    seconds = np.random.default_rng(0).uniform(0.005, 0.1, shape)
    return TableTimes((ROWS, PREFILL, contexts), seconds.tolist())


def model(name: str) -> ModelTimes:
    return ModelTimes(
        paper_plan(name, {}, ACCELERATORS["h100"], DeviceLayout(), (1, None), 400.0).timing
    )


@pytest.fixture(scope="module", params=["table", "one context", "llama-8b", "gpt-oss-120b"])
def times(request: pytest.FixtureRequest) -> StepTimes:
    if request.param == "table":
        return table()
    return table([64]) if request.param == "one context" else model(request.param)


@given(
    rows=st.integers(1, 9), context=st.integers(1, 4000), at=st.floats(0, 1e6),
    runs=st.integers(1, 64), steps=st.floats(0, 70),
)  # fmt: skip
def test_ends_of_decodes_are_those_of_single_steps(
    times: StepTimes, rows: int, context: int, at: float, runs: int, steps: float
) -> None:
    load = pure_decode(rows, rows * context)
    until = at + steps * times.seconds(load)
    ends = times.ends(load, at, runs, until)
    assert ends == stepwise(times, load, at, runs, until)
    assert 1 <= len(ends) <= runs
    assert len(ends) == runs or ends[-1] > until


def test_a_step_with_prompts_ends_once(times: StepTimes) -> None:
    load = StepLoad(2, 100, 40, 0, 40, 820, 3)
    assert times.ends(load, 5.0, 1, 9e9) == [5.0 + times.seconds(load)]


def test_times_of_the_table_itself() -> None:
    times = table()
    for (i, rows), (j, tokens), (k, context) in product(*map(enumerate, times.axes)):
        if rows + tokens:
            load = StepLoad(rows, rows * context, tokens, tokens * context, 0, 0, 0)
            assert times.seconds(load) == pytest.approx(times.seconds_at[i][j][k])


def test_a_time_between_those_of_the_table_is_linear_in_each_direction() -> None:
    times = table()
    load = StepLoad(3, 3 * 80, 48, 48 * 80, 0, 0, 0)
    corners = [
        times.seconds_at[i][j][k] for i, j, k in product((2, 3), (1, 2), (0, 1))
    ]  # each half as far as the other
    assert times.seconds(load) == pytest.approx(np.mean(corners))
