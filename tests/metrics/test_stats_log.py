"""The regular log line: there when asked for, in the words that people look for."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from jengine import LLM, SamplingParams
from jengine.counts import Counts, DraftCounts
from jengine.metrics import stats_log
from jengine.metrics.stats_log import StatsLog
from tests.models.tiny_models import write_tiny_native

LINE = re.compile(
    r"Engine 000: Avg prompt throughput: [\d.]+ tokens/s, Avg generation throughput: [\d.]+ "
    r"tokens/s, Running: \d+ reqs, Waiting: \d+ reqs, CPU KV cache usage: [\d.]+%, Prefix cache "
    r"hit rate: [\d.]+%"
)
SETTINGS = {
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "max_model_len": 64,
    "max_num_seqs": 2,
    "compilation_config": {"decode_rows": [2], "prefill_tokens": [64]},
}


@pytest.mark.parametrize("quiet", [True, False])
def test_the_line_is_logged_only_where_asked_for(
    quiet: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stats_log, "INTERVAL", 0.0)
    folder = write_tiny_native(tmp_path, "qwen3")
    with (
        caplog.at_level(logging.INFO),
        LLM(str(folder), disable_log_stats=quiet, **SETTINGS) as llm,
    ):
        llm.generate([[5] * 20, [6] * 9, [7]], SamplingParams(temperature=0, max_tokens=4))
    lines = [record.message for record in caplog.records if "Engine 000" in record.message]
    assert bool(lines) is not quiet
    assert all(LINE.fullmatch(line) for line in lines)


@pytest.fixture
def clock(caplog: pytest.LogCaptureFixture) -> Callable[[], float]:
    """A clock by which an interval passes each time that it is read."""
    # Its own level: that of all of jengine's loggers may have been set when a server began.
    caplog.set_level(logging.DEBUG, logger=stats_log.logger.name)
    return itertools.count(0.0, stats_log.INTERVAL).__next__


def levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.levelname for record in caplog.records if "Engine" in record.message]


def test_lines_of_an_idle_engine_are_for_debugging(
    clock: Callable[[], float], caplog: pytest.LogCaptureFixture
) -> None:
    counts = Counts(query_tokens=5)
    log = StatsLog(lambda: counts, "cpu", clock)
    for _ in range(3):
        log.tick()
    counts = Counts(query_tokens=6)
    log.tick()
    # The first interval without work still shows where the engine came to rest.
    assert levels(caplog) == ["INFO", "INFO", "DEBUG", "INFO"]


def test_each_engine_has_a_line(
    clock: Callable[[], float], caplog: pytest.LogCaptureFixture
) -> None:
    both = Counts(replicas=(Counts(running=1), Counts(running=2)))
    StatsLog(lambda: both, "gpu", clock).tick()
    first, second = caplog.messages
    assert first.startswith("Engine 000: ") and "Running: 1 reqs" in first
    assert second.startswith("Engine 001: ") and "Running: 2 reqs" in second


def test_a_core_that_takes_the_place_of_another_begins_at_nothing(
    clock: Callable[[], float], caplog: pytest.LogCaptureFixture
) -> None:
    counts = [Counts(steps=90, generation_tokens=500), Counts(steps=3, generation_tokens=40)]
    log = StatsLog(lambda: counts[0], "cpu", clock)
    log.tick()
    del counts[0]
    log.tick()
    found = [re.findall(r"generation throughput: (-?[\d.]+)", line) for line in caplog.messages]
    assert len(found) == 2 and all(float(number) > 0 for (number,) in found)


def test_the_line_counts_computed_tokens_and_events_of_the_interval() -> None:
    before = Counts(prompt_tokens=100, cached_prompt_tokens=50, generation_tokens=10, preemptions=1)
    now = Counts(
        prompt_tokens=300, cached_prompt_tokens=150, generation_tokens=30, preemptions=3,
        running=4, waiting=6, deferred=2, cache_usage=0.012, prefix_queries=10, prefix_hits=3,
        corrupted=1,
    )  # fmt: skip
    assert StatsLog(Counts, "gpu").line(before, now, 10.0) == (
        "Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 2.0 tokens/s, "
        "Running: 4 reqs, Waiting: 6 reqs, Deferred: 2 reqs, Preemptions: 2, "
        "GPU KV cache usage: 1.2%, Prefix cache hit rate: 30.0%, Corrupted: 1 reqs"
    )


def test_the_line_tells_what_became_of_drafts() -> None:
    before = Counts(drafts=DraftCounts(10, 40, 10))
    now = Counts(drafts=DraftCounts(20, 80, 40))
    line = StatsLog(Counts, "cpu").line(before, now, 10.0)
    assert line.endswith(", Mean acceptance length: 4.00, Draft acceptance rate: 75.0%")
    assert "acceptance" not in StatsLog(Counts, "cpu").line(now, now, 10.0)


def test_nothing_is_counted_before_the_interval_is_over() -> None:
    def ask() -> Counts:
        raise AssertionError("asked too early")

    StatsLog(ask, "cpu").tick()
