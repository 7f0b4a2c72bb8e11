"""Tables of growth hold what they promise, and are drawn again from the JSON alone."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from jengine import LLM
from jengine.bench import growth
from jengine.bench.growth import read_gb_s
from jengine.engine.core import EngineCore
from jengine.errors import ConfigError
from tests.bench.test_benches import bench, lines_and_result
from tests.models.tiny_models import write_tiny_native

WORDS = [
    "--running", "2", "3", "--steps", "4", "--contexts", "8", "32", "4096", "--rows", "1", "2", "9",
    "--num-iters", "2", "--input-len", "20", "--max-num-seqs", "6", "--max-model-len", "64",
    "--block-size", "16",
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_native(tmp_path_factory.mktemp("model"), "qwen3"))


@pytest.mark.slow
def test_growth_measures_draws_and_draws_again(model: str, tmp_path: Path) -> None:
    kept, plots = tmp_path / "growth.json", tmp_path / "plots"
    words = [*WORDS, "--enforce-eager", "--output-json", str(kept), "--plots", str(plots)]
    lines, found = lines_and_result("growth", model, *words)
    assert [row["running"] for row in found["host"]] == [2, 3]
    sizes = [(row["rows"], row["context"]) for row in found["decode"]]
    assert sizes == [(1, 8), (1, 32), (2, 8), (2, 32)]
    assert found["left_out"] == ["1 x 4096", "2 x 4096", "9 x 8", "9 x 32", "9 x 4096"]
    assert any("left out" in line for line in lines)
    for row in found["decode"]:
        assert row["floor_ms"] == pytest.approx(
            row["read_bytes"] / found["read_gb_s"] / 1e6, abs=1e-3
        )
    short, long = found["decode"][2:]
    assert long["read_bytes"] > short["read_bytes"] > found["decode"][0]["read_bytes"]
    assert all(row["reading_ms"] > 0 and row["queued_ms"] > 0 for row in found["decode"])
    held = found["memory"]
    assert [row["requests"] for row in held] == [row["running"] for row in held] == [1, 4, 6]
    for row in held:  # 20 tokens and the first few of the answers lie in two blocks of 16
        assert row["blocks"] == 2 * row["requests"]
        assert row["cache_bytes"] == held[0]["cache_bytes"] * row["requests"]
        assert row["resident_bytes"] > 1e7
    page = (plots / "growth.html").read_text()
    assert page.count("<svg") == 4 and "http" not in page and "<script" not in page
    for chart in page.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + chart.split("</svg>")[0] + "</svg>")

    again = tmp_path / "again"
    status, lines, errors = bench("growth", "--from", str(kept), "--plots", str(again))
    assert status == 0, errors
    assert json.loads(lines[-1]) == found, "nothing is measured"
    assert (again / "growth.html").read_text() == page


@pytest.mark.slow
def test_states_are_read_whole_at_every_context(tmp_path: Path) -> None:
    """What a step reads of recurrent layers does not grow, and that of attention does."""
    model = str(write_tiny_native(tmp_path / "hybrid", "lfm2"))
    _, found = lines_and_result("growth", model, *WORDS, "--enforce-eager")
    by_size = {(row["rows"], row["context"]): row["read_bytes"] for row in found["decode"]}
    one, two = by_size[1, 32] - by_size[1, 8], by_size[2, 32] - by_size[2, 8]
    assert 24 * 2 * 2 * 8 * 4 == one == two / 2  # keys and values of one layer, two heads of 8
    assert by_size[2, 8] - by_size[1, 8] > one // 3  # those of 8 tokens, and a state
    assert [row["requests"] for row in found["memory"]] == [1, 4, 6]


def test_cache_bytes_are_those_of_the_array(model: str) -> None:
    """Everything in use, counted in bytes, is the whole cache without its null block."""
    with LLM(model, skip_tokenizer_init=True, max_num_seqs=2, max_model_len=64,
             enforce_eager=True, show_progress=False) as llm:  # fmt: skip
        core = llm.engine.in_process.core
        assert isinstance(core, EngineCore)
        (group,), (array,) = core.scheduler.cache.groups, llm.engine.loaded.state.caches
        group.pool.allocate(group.pool.total)
        one = array.nbytes // llm.engine.cache.num_blocks[0]
        assert growth.cache_bytes(llm, core) == array.nbytes - one > 0


@pytest.mark.parametrize(
    ("most", "counts"), [(1, [1]), (2, [1, 2]), (4, [1, 4]), (64, [1, 4, 16, 64]), (9, [1, 4, 9])]
)
def test_counts(most: int, counts: list[int]) -> None:
    assert growth.counts_up_to(most) == counts


def test_what_growth_cannot_measure() -> None:
    client = SimpleNamespace(core="of several replicas")
    llm: Any = SimpleNamespace(engine=SimpleNamespace(in_process=client))
    with pytest.raises(ConfigError, match="without replicas"):
        growth.measure(
            llm, running=[2], steps=1, contexts=[8], rows=[2], iterations=1, prompt_length=8
        )


def test_a_prompt_that_is_too_long(model: str) -> None:
    words = ["--max-num-seqs", "2", "--max-model-len", "64", "--enforce-eager"]
    status, _, errors = bench("growth", model, "--input-len", "64", *words)
    assert status == 1 and "--input-len 64: expected less than max_model_len, 64" in errors


@pytest.mark.parametrize("floor", [None, 2.5])
def test_a_page_has_a_chart_for_each_number_of_rows(floor: float | None) -> None:
    times = {"queued_ms": 3.0, "reading_ms": 4.0, "tok_s": 5.0}
    steps = [{"rows": rows, "context": context, **times} for rows in (1, 8) for context in (16, 64)]
    if floor is not None:
        steps = [{**row, "floor_ms": floor} for row in steps]
    memory = [{"requests": 1, "blocks": 2, "cache_bytes": 3e6, "resident_bytes": 4e6,
               "device_bytes": None}]  # fmt: skip
    host = [{"running": 4, "total_ms": 1.0, "pack_ms": 0.5, "schedule_and_commit_ms": 0.5,
             "us_per_request": 250.0}]  # fmt: skip
    hardware = {"processor": "P", "cores": 1, "devices": ["cpu"]}
    result = {"command": "c", "commit": "abc", "prompt_length": 8, "left_out": [], "decode": steps,
              "hardware": hardware, "host": host, "memory": memory}  # fmt: skip
    if floor is not None:
        result["read_gb_s"] = 40.0
    page = growth.page(result)
    assert page.count("<svg") == 4 and "rows: 1." in page and "rows: 8." in page
    assert "the host takes 1.00 ms for a step of 4 requests (250.0 us each), 8 rows of" in page
    assert ("memory&#x27;s floor" in page) == (floor is not None)
    assert ("at the 40.0 GB/s" in growth.printed(result)) == (floor is not None)


def test_memory_is_read_at_a_plausible_speed() -> None:
    assert 0.1 < read_gb_s(2**22) < 10_000


def test_other_results_are_not_drawn(tmp_path: Path) -> None:
    (tmp_path / "host.json").write_text('{"bench": "host"}')
    status, _, errors = bench("growth", "--from", str(tmp_path / "host.json"))
    assert status == 1 and "expected a result of bench growth" in errors


def test_devices_that_tell_their_memory_have_a_line_of_it() -> None:
    row = {"requests": 1, "blocks": 2, "cache_bytes": 3e6, "resident_bytes": 4e6}
    around = {"command": "c", "commit": "abc", "prompt_length": 8, "left_out": [], "decode": []}
    hardware = {"processor": "P", "cores": 1, "devices": ["NVIDIA H200"]}
    host = [{"running": 4, "total_ms": 1.0, "pack_ms": 0.5, "schedule_and_commit_ms": 0.5,
             "us_per_request": 250.0}]  # fmt: skip
    for device, shown in ((None, False), (5e6, True)):
        memory = [{**row, "device_bytes": device}]
        result = {**around, "hardware": hardware, "host": host, "memory": memory}
        assert ("device MB" in growth.printed(result)) == shown
        page = growth.page(result)
        assert ("the device" in page) == shown
        assert page.count("<svg") == 2, "there are no decode steps to draw"
        assert "NVIDIA H200, 1 core of P" in page
