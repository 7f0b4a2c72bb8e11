"""The benchmarks run and print what they promise; nothing here looks at how fast."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from jengine.bench import against
from jengine.bench.against import Peer, PeerFailed, PeerSettings
from jengine.bench.workloads import WORKLOADS, generated, read_trace, write_trace
from jengine.cli.main import main
from jengine.cli.terminal import Terminal
from jengine.errors import ConfigError
from tests.models.tiny_models import write_tiny_native

ENGINE = ["--max-num-seqs", "2", "--max-model-len", "64", "--enforce-eager"]
# A peer that answers at once; it may also be told to fail.
FAKE_PEER = """
import json, sys
settings = json.loads(sys.stdin.readline())
items = [json.loads(line) for line in open(settings["trace"])]
print(json.dumps({"ready": "fake 1.0", "startup_s": 0.5}), flush=True)
for number, _ in enumerate(sys.stdin):
    if settings["model"] == "fails" and number:
        sys.exit("out of luck")
    count = sum(item["max_tokens"] for item in items)
    print(json.dumps({"seconds": 2.0, "generated": count}), flush=True)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_native(tmp_path_factory.mktemp("model"), "qwen3"))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "trace.jsonl"
    work = [([5, 6, 7], 4), ([8] * 20, 2), ([9], 6)]
    lines = [json.dumps({"prompt_token_ids": ids, "max_tokens": n}) for ids, n in work]
    file.write_text("\n".join(lines))
    return file


@pytest.fixture
def fake_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fake.py").write_text(FAKE_PEER)
    monkeypatch.setattr(against, "PROGRAMS", tmp_path)
    monkeypatch.setitem(against.PEERS, "fake", "fake.py")


def bench(*words: str) -> tuple[int, list[str], str]:
    """Exit status, lines of output, and what was said beside it."""
    terminal = Terminal(io.StringIO(), io.StringIO(), io.StringIO())
    status = main(["bench", *words], terminal=terminal)
    assert isinstance(terminal.stdout, io.StringIO) and isinstance(terminal.stderr, io.StringIO)
    return status, terminal.stdout.getvalue().splitlines(), terminal.stderr.getvalue()


def result(*words: str) -> dict[str, Any]:
    status, lines, errors = bench(*words)
    assert status == 0, errors
    return json.loads(lines[-1])


def test_host_measures_every_size() -> None:
    found = result("host", "--running", "2", "5", "--steps", "4")
    assert [row["running"] for row in found["results"]] == [2, 5]
    for row in found["results"]:
        parts = row["schedule_and_commit_ms"] + row["pack_ms"]
        assert row["total_ms"] == pytest.approx(parts, abs=1e-3)
    assert found["command"] == "jengine bench host --running 2 5 --steps 4"


def test_throughput_counts_the_work_of_a_trace(model: str, trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    words = ["--trace", str(trace), "--repeats", "2", "--json", str(file)]
    found = result("throughput", model, *words, *ENGINE)
    assert found["requests"] == 3 and found["prompt_tokens"] == 24
    assert found["generated"] == 12, "greedy, with the end token ignored"
    assert len(found["seconds"]) == 2 and found["output_tok_s"] > 0
    assert all(program["hits"] >= 0 for program in found["programs"])
    assert json.loads(file.read_text()) == found
    assert {"commit", "processor", "jax", "cores"} <= set(found)


def test_a_peer_runs_in_turn(model: str, trace: Path, fake_peer: None) -> None:
    words = ["throughput", model, "--trace", str(trace), "--against", "fake", *ENGINE]
    found = result(*words)
    assert found["peer"]["output_tok_s"] == 6.0 and found["peer"]["engine"] == "fake 1.0"
    assert found["ratio"] == pytest.approx(found["output_tok_s"] / 6.0, rel=0.01)
    assert len(found["seconds"]) == len(found["peer"]["seconds"]) == 3


def test_our_own_deterministic_mode_as_a_peer(model: str, trace: Path) -> None:
    words = ["--trace", str(trace), "--against", "deterministic", "--repeats", "1", *ENGINE]
    found = result("throughput", model, *words)
    assert found["peer"]["engine"] == "jengine, deterministic"
    assert found["peer"]["generated"] == 12 and found["ratio"] > 0


@pytest.mark.slow
def test_transformers_as_a_peer(model: str, trace: Path) -> None:
    pytest.importorskip("torch")
    words = ["--trace", str(trace), "--against", "transformers", "--repeats", "1", *ENGINE]
    found = result("throughput", model, *words)
    assert found["peer"]["generated"] == 12 and "torch" in found["peer"]["engine"]


def test_a_peer_that_fails_says_why(trace: Path, fake_peer: None) -> None:
    settings = PeerSettings("fails", str(trace), "float32", 2, 64, True)
    with Peer("fake", None, settings) as peer:
        assert peer.run() == (2.0, 12)
        with pytest.raises(PeerFailed, match="status 1: out of luck"):
            peer.run()
    with pytest.raises(ConfigError, match="cannot be run"):
        Peer("fake", "/nowhere/python", settings)
    with pytest.raises(ConfigError, match="expected one of transformers, vllm"):
        Peer("gpt", None, settings)


def test_latency(model: str) -> None:
    words = ["--input-len", "4", "--output-len", "3", "--batch-size", "2", "--num-iters", "3"]
    found = result("latency", model, *words, *ENGINE)
    assert len(found["latencies"]) == 3 and found["percentiles"]["50"] > 0
    assert found["command"].startswith(f"jengine bench latency {model} --input-len 4")


@pytest.mark.slow
def test_startup_measures_cold_and_warm(model: str) -> None:
    found = result("startup", model, "--num-iters-cold", "0", "--num-iters-warm", "1", *ENGINE)
    assert 0 < found["warm"]["imports_s"] < found["warm"]["ready_s"]
    assert found["warm"]["ready_s"] < found["warm"]["first_token_s"]
    assert "cold" not in found


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_are_the_same_every_time(name: str, tmp_path: Path) -> None:
    items = generated(name, 1000, requests=5, seed=3)
    assert items == generated(name, 1000, requests=5, seed=3) != generated(name, 1000, 5, seed=4)
    write_trace(items, tmp_path / "trace")
    assert read_trace(tmp_path / "trace") == items
    assert all(0 <= token < 1000 for item in items for token in item.prompt_token_ids)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["throughput"], "bench throughput needs a model"),
        (["host", "demo"], "bench host has no model"),
        (["latency", "demo", "--batch-size", "0"], "--batch-size 0: expected 1 or more"),
        (["latency", "demo", "--json", "/nowhere/at/all"], "in a folder that exists"),
    ],
)
def test_bad_input(words: list[str], message: str) -> None:
    status, _, errors = bench(*words)
    assert status == 1 and message in errors


def test_bad_traces_and_workloads(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text('{"prompt": "text"}')
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="line 1: expected"):
        read_trace(tmp_path / "bad")
    with pytest.raises(ConfigError, match="no requests"):
        read_trace(tmp_path / "empty")
    with pytest.raises(ConfigError, match="Did you mean 'mixed'"):
        generated("mixd", 1000)


def test_peers_import_nothing_of_ours() -> None:
    for name in against.PEERS.values():
        assert "jengine" not in (against.PROGRAMS / name).read_text(), sys.version
