"""The table of steps: measured on the small demo engine, and simulated by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jengine import LLM
from jengine.bench.step_table import above_too, doubled, measure
from jengine.capacity.simulation.proof import proof
from jengine.capacity.simulation.step_times import StepLoad, pure_decode
from jengine.capacity.simulation.table_times import TableTimes, read_table, table_kind
from jengine.capacity.simulation.trace import TraceSettings
from tests.api.engines import SMALL_DEMO


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("demo", **SMALL_DEMO, skip_tokenizer_init=True)


def test_numbers_double() -> None:
    assert doubled(1, 8) == [1, 2, 4, 8]
    assert doubled(1, 7) == [1, 2, 4, 7]
    assert doubled(32, 20) == []


def test_a_prompt_costs_the_tile_that_it_begins() -> None:
    sizes = above_too(doubled(32, 128))
    assert sizes == [32, 33, 64, 65, 128]
    padded = [float(-(-size // 32)) for size in sizes]  # of an engine that runs whole tiles
    times = TableTimes(([0, 1], [0, *sizes], [8]), [[[one] for one in (0.0, *padded)]] * 2)
    for tokens, tiles in ((32, 1), (33, 2), (50, 2), (64, 2), (65, 3), (128, 4)):
        load = StepLoad(0, 0, tokens, 0, tokens, tokens, 1)
        assert times.seconds(load) == pytest.approx(tiles)


@pytest.mark.slow
def test_a_table_describes_the_engine_that_was_measured(llm: LLM, tmp_path: Path) -> None:
    file = tmp_path / "steps.json"
    file.write_text(json.dumps({"model": "demo", **measure(llm, 1)}), encoding="utf-8")
    kind = table_kind(read_table(file))
    assert kind.schedule == llm.engine.schedule
    assert kind.cache == llm.engine.cache
    assert kind.times.seconds(pure_decode(1, 40)) > 0
    table = read_table(file)
    assert table.decode_rows[-1] == llm.engine.schedule.max_num_seqs - 1
    assert all(
        seconds > 0
        for rows, columns in zip(table.decode_rows, table.seconds, strict=True)
        for tokens, times in zip(table.prefill_tokens, columns, strict=True)
        for seconds in times
        if rows + tokens
    )


@pytest.mark.slow
def test_a_measured_trace_and_its_simulation_have_the_same_requests(llm: LLM) -> None:
    settings = TraceSettings(requests=6, rate=50.0, input_len=20, output_len=5, spread=0.3,
                             longest=64, vocab_size=llm.engine.model.vocab_size)  # fmt: skip
    result = proof(llm, settings, 1)
    real, simulated = result["measured"], result["simulated"]
    for name in ("completed", "total_input_tokens", "total_output_tokens"):
        assert real[name] == simulated[name]
    assert [row["figure"] for row in result["compared"]] == [
        "output tokens/s", "TTFT p50, ms", "ITL p50, ms"
    ]  # fmt: skip
    assert real["latency_ms"]["ttft"]["p50"] > 0
