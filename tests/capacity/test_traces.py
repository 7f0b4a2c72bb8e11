"""Traces: rates, lengths, shares of groups, and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jengine.capacity.simulation.csv_trace import CsvTrace
from jengine.capacity.simulation.history import Gaps
from jengine.capacity.simulation.step_times import StepLoad, pure_decode
from jengine.capacity.simulation.table_times import TableTimes
from jengine.capacity.simulation.trace import SyntheticTrace, TraceSettings, next_turn
from jengine.errors import ConfigError


def test_a_trace_keeps_its_rate_lengths_and_prefixes() -> None:
    given = TraceSettings(requests=5000, rate=20.0, input_len=50, output_len=30, spread=0.5,
                          prefixes=4, prefix_len=16)  # fmt: skip
    arrivals = list(SyntheticTrace(given).arrivals())
    times = [at for at, _ in arrivals]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(250, rel=0.1)
    assert np.mean([len(ask.prompt) - 16 for _, ask in arrivals]) == pytest.approx(50, rel=0.05)
    assert np.mean([ask.answer for _, ask in arrivals]) == pytest.approx(30, rel=0.05)
    assert len({tuple(ask.prompt[:16]) for _, ask in arrivals}) == 4
    assert arrivals == list(SyntheticTrace(given).arrivals())


def test_bursts_vary_more_than_a_poisson_process() -> None:
    spread = {}
    for burstiness in (1.0, 0.2):
        given = TraceSettings(requests=4000, rate=10.0, burstiness=burstiness)
        times = np.array([at for at, _ in SyntheticTrace(given).arrivals()])
        waits = np.diff(times)
        spread[burstiness] = waits.std() / waits.mean()
    assert spread[1.0] == pytest.approx(1, abs=0.1)
    assert spread[0.2] == pytest.approx(np.sqrt(5), rel=0.15)


def test_groups_share_the_requests() -> None:
    given = TraceSettings(requests=40, rate=5.0, spread=0.3)
    whole = list(SyntheticTrace(given).arrivals())
    parts = [
        one
        for part in range(3)
        for one in SyntheticTrace(
            TraceSettings(**{**vars(given), "part": part, "of": 3})
        ).arrivals()
    ]
    keys = [
        sorted((at, len(ask.prompt), ask.answer) for at, ask in some) for some in (whole, parts)
    ]
    assert keys[0] == keys[1]


def test_a_turn_repeats_what_was_said() -> None:
    given = TraceSettings(requests=3, turns=3, input_len=5, output_len=4, think=1.0)
    ((_, ask),) = SyntheticTrace(given).arrivals()
    following = next_turn(ask, [7] * 4, 10.0, 100)
    assert following is not None
    at, second = following
    assert at > 10
    assert second.prompt[:9] == [*ask.prompt, 7, 7, 7, 7]
    assert len(second.prompt) == 14
    third = next_turn(second, [7] * 4, at, 100)
    assert third is not None and len(third[1].prompt) == 23
    assert next_turn(third[1], [7] * 4, at, 100) is None


def write(folder: Path, text: str) -> Path:
    file = folder / "trace.csv"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_file_says_what_is_shared(tmp_path: Path) -> None:
    file = write(tmp_path, "arrival,prompt_tokens,output_tokens,prefix,prefix_tokens,conversation\n"
                 "1.5,6,3,system,8,\n0.5,4,2,system,8,talk\n4,5,1,,,talk\n")  # fmt: skip
    trace = CsvTrace(file, TraceSettings())
    assert trace.has_turns
    (at, first), (_, second) = trace.arrivals()
    assert at == 0.5 and len(first.prompt) == 12 and first.answer == 2
    assert first.prompt[:8] == second.prompt[:8] and len(second.prompt) == 14
    following = next_turn(first, [1, 2], 1.0, 1000)
    assert following is not None
    assert following[0] == 4.0 and len(following[1].prompt) == 12 + 2 + 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arrival,prompt_tokens\n", "output_tokens"),
        ("arrival,prompt_tokens,output_tokens,colour\n1,1,1,red\n", "columns"),
        ("arrival,prompt_tokens,output_tokens\n", "no requests"),
        ("arrival,prompt_tokens,output_tokens\nsoon,1,1\n", "line 2: expected numbers"),
        ("arrival,prompt_tokens,output_tokens\n1,5,0\n", "at least one token"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CsvTrace(write(tmp_path, text), TraceSettings())


def test_a_table_is_linear_between_its_steps_and_beyond_them() -> None:
    axes = ([0, 4, 8], [0, 32], [10, 110])
    seconds = [[[1 + 2 * r + 3 * p + 4 * c for c in axes[2]] for p in axes[1]] for r in axes[0]]
    times = TableTimes(axes, seconds)
    assert times.seconds(pure_decode(3, 3 * 50)) == pytest.approx(1 + 6 + 4 * 50)
    assert times.seconds(pure_decode(16, 16 * 210)) == pytest.approx(1 + 32 + 840)
    mixed = StepLoad(2, 2 * 30, 18, 18 * 30, 0, 0, 0)
    assert times.seconds(mixed) == pytest.approx(1 + 4 + 54 + 120)


def test_gaps_are_kept_to_half_a_percent() -> None:
    gaps, values = Gaps(), np.random.default_rng(0).lognormal(-4, 1, 20_000)
    gaps.add_all(values.tolist())
    for percent in (1, 50, 99.9):
        assert gaps.percentile(percent) == pytest.approx(np.percentile(values, percent), rel=0.006)
