"""The table of engines: each runs the same requests, and times are multiples of the roofline."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jengine.bench.against import PeerWork
from jengine.bench.gpu import __main__ as check
from jengine.bench.gpu import contender
from jengine.bench.gpu.cases import DRY, REAL, Requests
from jengine.bench.gpu.page import page
from jengine.bench.gpu.part import StageResult
from jengine.bench.gpu.report import roofline_seconds, shares
from jengine.bench.gpu.stages import STAGES, TABLE, Settings, command, obstacle
from jengine.bench.workloads import Item, read_trace
from jengine.models.registry import model_config


class FakePeer:
    """Answers in a second per request; remembers what it was given."""

    version = "vllm 9"

    def __init__(self, name: str, python: str, settings: PeerWork) -> None:
        self.given, self.traces = (name, python, settings), list[list[Item]]()

    def __enter__(self) -> FakePeer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, trace: Path | None = None) -> tuple[float, int]:
        assert trace is not None
        self.traces.append(read_trace(trace))
        return float(len(self.traces[-1])), sum(item.max_tokens for item in self.traces[-1])


def arguments(part: StageResult, engine: str, *, race: bool = False) -> argparse.Namespace:
    return argparse.Namespace(
        part=part.path, dry_run=True, model="llama-8b", engine=engine, peer_python="a-python",
        race=race,
    )  # fmt: skip


def measured(tmp_path: Path, engine: str, *, race: bool = False) -> dict[str, Any]:
    part = StageResult(tmp_path / f"table-{engine}.json", 1000)
    contender.measure(part, arguments(part, engine, race=race))
    assert not part.failed, part.content["lines"]
    return part.content


def test_a_peer_runs_the_requests_that_ours_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers: list[FakePeer] = []

    def start(*given: Any) -> FakePeer:
        peers.append(FakePeer(*given))
        return peers[-1]

    monkeypatch.setattr(contender, "trace_peer", start)
    first, second = measured(tmp_path, "vllm")["lines"]
    assert (first["engine"], first["version"], first["case"]) == (
        "vllm", "vllm 9", "1 x prompt of 40"
    )  # fmt: skip
    assert (first["ms"], first["tok_s"]) == (1000.0, 40.0)
    assert (second["ms"], second["tok_s"]) == (2000.0, 3.0)
    (peer,) = peers
    name, python, settings = peer.given
    assert (name, python, settings.max_num_seqs, settings.max_model_len) == (
        "vllm", "a-python", 2, 41
    )  # fmt: skip
    assert len(peer.traces) == (contender.ROUNDS + 1) * len(DRY.table)
    assert [len(item.prompt_token_ids) for item in peer.traces[-1]] == [8, 8]


def test_answers_that_are_cut_short_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contender, "trace_peer", FakePeer)
    monkeypatch.setattr(FakePeer, "run", lambda *_: (1.0, 0))
    part = StageResult(tmp_path / "table.json", 1000)
    contender.measure(part, arguments(part, "mlx"))
    assert ["failed" in line for line in part.content["lines"]] == [True, True]


def test_a_race_takes_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peers: list[FakePeer] = []
    turns: list[str] = []
    shapes = SimpleNamespace(prompts=None, attention="cpu")
    ours = SimpleNamespace(engine=SimpleNamespace(loaded=SimpleNamespace(shapes=shapes)))

    class Peer(FakePeer):
        def run(self, trace: Path | None = None) -> tuple[float, int]:
            turns.append("theirs")
            return super().run(trace)

        def __exit__(self, *_: object) -> None:
            turns.append("closed")

    def start(*given: Any) -> FakePeer:
        peers.append(Peer(*given))
        return peers[-1]

    monkeypatch.setattr(contender, "trace_peer", start)
    monkeypatch.setattr(contender, "LLM", lambda *_, **settings: nullcontext(ours))
    monkeypatch.setattr(contender, "run_once", lambda *_: turns.append("ours") or (1.0, 6))
    (line,) = measured(tmp_path, "vllm", race=True)["lines"]
    assert (line["ratio"], line["peer"], line["tok_s"]) == (2.0, "vllm 9", 6.0)
    assert turns == ["ours", "theirs"] * (contender.ROUNDS + 1) + ["closed"]
    name, python, settings = peers[0].given
    assert (name, python, settings.load_format) == ("vllm", "a-python", "dummy")
    assert 2 * settings.memory_share < 0.9


@pytest.mark.slow
def test_ours_runs_them(tmp_path: Path) -> None:
    lines = measured(tmp_path, "triton")["lines"]
    assert [line["case"] for line in lines] == [str(one) for one in DRY.table]
    assert all(line["tok_s"] > 0 and line["version"].endswith(", triton") for line in lines)


def test_the_least_is_all_weights_a_step_and_all_operations() -> None:
    config = model_config(REAL.models["llama-8b"])
    prompts, steps = contender.least(Requests(8, 128, 256), config)
    assert (prompts["times"], steps["times"]) == (1, 255)
    weights = 2 * 7.5e9  # without the embedding
    assert weights < steps["bytes"] < 1.05 * weights
    # Two operations a weight and token; attention over half of the prompt adds a little.
    assert 2 * 6.98e9 * 8 * 128 < prompts["operations"] < 2.2 * 6.98e9 * 8 * 128
    assert 2 * 7.5e9 * 8 < steps["operations"] < 2.2 * 7.5e9 * 8


def test_times_are_multiples_of_the_roofline() -> None:
    line = {
        "what": "table", "case": "1 x prompt of 8", "engine": "vllm", "version": "vllm <9>",
        "ms": 100.0, "tok_s": 1234.5,
        "least": [{"times": 1, "bytes": 1e9, "operations": 1e12},
                  {"times": 10, "bytes": 2e9, "operations": 1e11}],
    }  # fmt: skip
    assert roofline_seconds(line, 1e12, 1e14) == pytest.approx(0.01 + 10 * 0.002)
    parts: dict[str, Any] = {
        "ceilings": {"status": "done", "lines": [
            {"what": "copy", "case": "", "gb_s": 1000.0},
            {"what": "product bfloat16", "case": "", "tflop_s": 100.0}]},
        "table-vllm": {"status": "done", "lines": [line]},
    }  # fmt: skip
    shares(parts)
    assert line["of_roofline"] == 3.33
    text = page({"dry_run": False, "command": "", "parts": parts})
    assert "<th>vllm &lt;9&gt;</th>" in text
    assert "<td>1 x prompt of 8</td><td>1,234 (3.33)</td>" in text


def test_the_table_has_stages_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def run(stage: Any, *_: Any) -> dict[str, Any]:
        ran.append(stage.name)
        return {"status": "done", "lines": []}

    monkeypatch.setattr(check, "run_one", run)
    check.main(["--out", str(tmp_path), "--dry-run", "--table"])
    assert ran == ["device", "ceilings", "table-triton", "table-fa4", "table-vllm", "table-mlx"]
    ran.clear()
    check.main(["--out", str(tmp_path), "--dry-run"])
    assert not [name for name in ran if name.startswith("table-")]


def test_peers_need_a_python_that_has_them(tmp_path: Path) -> None:
    *_, vllm, mlx = TABLE
    assert "--vllm-python names no" in str(obstacle(vllm, Settings(tmp_path, False, "")))
    with_mlx = Settings(tmp_path, False, "", mlx_python=sys.executable)
    assert "has no mlx and no mlx_lm" in str(obstacle(mlx, with_mlx))
    words = command(mlx, with_mlx, 9)
    assert words[words.index("--engine") + 1] == "mlx"
    assert words[words.index("--peer-python") + 1] == sys.executable
    assert {one.peer for one in STAGES} == {"", "vllm"}
