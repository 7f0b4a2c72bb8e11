"""The benchmarks run and print what they promise; nothing here looks at how fast."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jengine import LLM
from jengine.bench import against, load, peak_memory, startup, step_clock
from jengine.bench.against import PeerFailed, PeerProgram, PeerWork, trace_peer
from jengine.bench.machine import peak_bytes
from jengine.bench.throughput import EngineRuns, memory_line
from jengine.bench.workloads import WORKLOADS, Item, generated, read_trace, write_trace
from jengine.cli.main import main
from jengine.cli.terminal import Terminal
from jengine.errors import ConfigError
from tests.cli.fake_llm import FakeLLM
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
    monkeypatch.setitem(against.PEERS, "fake", PeerProgram("fake.py", ()))


def bench(*words: str) -> tuple[int, list[str], str]:
    """Exit status, lines of output, and what was said beside it."""
    terminal = Terminal(io.StringIO(), io.StringIO(), io.StringIO())
    status = main(["bench", *words], terminal=terminal)
    assert isinstance(terminal.stdout, io.StringIO) and isinstance(terminal.stderr, io.StringIO)
    return status, terminal.stdout.getvalue().splitlines(), terminal.stderr.getvalue()


def result(*words: str) -> dict[str, Any]:
    """What the last line says; whatever was measured, it says where as well."""
    return lines_and_result(*words)[1]


def lines_and_result(*words: str) -> tuple[list[str], dict[str, Any]]:
    status, lines, errors = bench(*words)
    assert status == 0, errors
    found = json.loads(lines[-1])
    assert found["bench"] == words[0]
    assert {"command", "commit"} <= set(found)
    assert set(found["hardware"]) == {"processor", "cores", "memory_gb", "devices"}
    assert {"jengine", "python", "jax", "jaxlib", "numpy"} == set(found["versions"])
    return lines[:-1], found


def test_host_measures_every_size() -> None:
    found = result("host", "--running", "2", "5", "--steps", "4")
    assert [row["running"] for row in found["results"]] == [2, 2, 5, 5]
    short, long = found["results"][:2]
    assert short["max_model_len"] < long["max_model_len"] == 131_072
    assert short["packed_bytes"] == long["packed_bytes"], "packing must not depend on the context"
    for row in found["results"]:
        parts = row["schedule_and_commit_ms"] + row["pack_ms"]
        assert row["total_ms"] == pytest.approx(parts, abs=1e-3)
    assert found["command"] == "jengine bench host --running 2 5 --steps 4"


@pytest.mark.slow
def test_throughput_counts_the_work_of_a_trace(model: str, trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    words = ["--trace", str(trace), "--repeats", "2", "--output-json", str(file)]
    lines, found = lines_and_result("throughput", model, *words, *ENGINE)
    assert found["requests"] == 3 and found["prompt_tokens"] == 24
    assert found["generated"] == 12, "greedy, with the end token ignored"
    assert len(found["seconds"]) == 2 and found["output_tok_s"] > 0
    assert all(program["hits"] >= 0 for program in found["programs"])
    assert json.loads(file.read_text()) == found
    forwards = [one for one in found["programs"] if "+" in one["bucket"]]
    computed = sum(one["hits"] * tokens_of(one["bucket"]) for one in forwards)
    useful = sum(one["useful_tokens"] for one in found["programs"])
    # The last token of each answer is sampled and never computed.
    assert useful == 2 * (24 + 12 - 3)
    assert found["padded_share"] == pytest.approx(1 - useful / computed, abs=1e-4)
    assert found["compile_s"] == pytest.approx(
        sum(one["seconds"] for one in found["programs"]), abs=0.01
    )
    shown = "\n".join(lines)
    for words_of in ("Prefix hit rate: 0.0%", "Peak memory: ", "Compiling: ", "Padding: "):
        assert words_of in shown
    assert all(program["bucket"] in shown for program in found["programs"])


def tokens_of(bucket: str) -> int:
    """2+32x4 -> 34."""
    rows, rest = bucket.split("+")
    return int(rows) + int(rest.split("x")[0])


def test_throughput_divides_time_and_memory(model: str, trace: Path) -> None:
    found = result("throughput", model, "--trace", str(trace), "--repeats", "2", *ENGINE)
    time, held = found["time"], found["memory"]
    steps = sum(program["hits"] for program in found["programs"] if "+" in program["bucket"])
    assert time["steps"] == steps, "the clock sees every step"
    assert time["wall_s"] == pytest.approx(sum(found["seconds"]), abs=0.05)
    assert time["host_s"] + time["waiting_s"] == pytest.approx(time["wall_s"], abs=1e-3)
    assert 0 < time["packing_s"] < time["host_s"] and time["waiting_s"] > 0
    assert 0 <= time["idle_at_least_s"] <= time["idle_at_most_s"] <= time["wall_s"]
    rest = held["peak_resident_gb"] - held["weights_gb"] - held["cache_gb"]
    assert held["over_weights_and_cache_gb"] == pytest.approx(rest, abs=1e-3)
    assert held["peak_resident_gb"] > 0.05 and held["peak_device_gb"] is None


def test_replicas_divide_no_time() -> None:
    client = SimpleNamespace(core="of several replicas")
    llm: Any = SimpleNamespace(engine=SimpleNamespace(in_process=client))
    assert EngineRuns(llm, []).time is None
    assert step_clock.printed(None).startswith("Time: not divided")


def test_the_peak_is_the_devices_where_it_tells(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    peak = {"peak_bytes_in_use": 3_000_000_000}
    monkeypatch.setattr(peak_memory, "device_stats", lambda _: peak)
    with LLM(model, skip_tokenizer_init=True, max_num_seqs=2, max_model_len=64,
             enforce_eager=True, show_progress=False) as llm:  # fmt: skip
        found = peak_memory.peak_memory(llm)
    assert found["peak_device_gb"] == 3.0
    assert found["weights_gb"] > 0 and found["cache_gb"] >= 0
    rest = 3.0 - found["weights_gb"] - found["cache_gb"]
    assert found["over_weights_and_cache_gb"] == pytest.approx(rest, abs=2e-4)
    assert memory_line(found).startswith("Peak memory: 3.00 GB on the device")


def test_prefix_hits_are_told(model: str, tmp_path: Path) -> None:
    same = list(range(5, 45))
    lines = [json.dumps({"prompt_token_ids": same, "max_tokens": 2})] * 4
    (tmp_path / "same").write_text("\n".join(lines))
    found = result("throughput", model, "--trace", str(tmp_path / "same"), *ENGINE)
    assert 0.3 < found["prefix_hit_rate"] < 0.9, "all but the first two find whole blocks"


def test_a_peer_runs_in_turn(model: str, trace: Path, fake_peer: None) -> None:
    words = ["throughput", model, "--trace", str(trace), "--against", "fake", *ENGINE]
    found = result(*words)
    assert found["peer"]["output_tok_s"] == 6.0 and found["peer"]["engine"] == "fake 1.0"
    assert found["ratio"] == pytest.approx(found["output_tok_s"] / 6.0, rel=0.01)
    assert len(found["seconds"]) == len(found["peer"]["seconds"]) == 3


@pytest.mark.slow
def test_our_own_deterministic_mode_as_a_peer(model: str, trace: Path) -> None:
    words = ["--trace", str(trace), "--against", "deterministic", "--repeats", "1", *ENGINE]
    found = result("throughput", model, *words)
    assert found["peer"]["engine"] == "jengine, deterministic"
    assert found["peer"]["generated"] == 12 and found["ratio"] > 0


@pytest.mark.slow
def test_our_own_plain_weights_as_a_peer(model: str, trace: Path) -> None:
    words = ["--trace", str(trace), "--against", "plain", "--repeats", "1", *ENGINE]
    found = result("throughput", model, "--quantization", "int8", *words)
    assert found["peer"]["engine"] == "jengine, plain weights" and found["quantization"] == "int8"


@pytest.mark.slow
def test_drafts_against_plain_decoding(model: str) -> None:
    drafts = ["--speculative-config", '{"method": "suffix", "num_speculative_tokens": 2}']
    words = ["--workload", "repeat", "--num-prompts", "2", "--repeats", "1", *ENGINE]
    words[words.index("--max-model-len") + 1] = "512"
    found = result("throughput", model, *words, *drafts, "--against", "plain")
    assert found["peer"]["engine"] == "jengine, without drafts"
    assert found["peer"]["generated"] == 256 and found["ratio"] > 0
    assert found["drafts"]["drafted"] == sum(found["drafts"]["drafted_at"]) > 0


@pytest.mark.slow
def test_transformers_as_a_peer(model: str, trace: Path) -> None:
    pytest.importorskip("torch")
    words = ["--trace", str(trace), "--against", "transformers", "--repeats", "1", *ENGINE]
    found = result("throughput", model, *words)
    assert found["peer"]["generated"] == 12 and "torch" in found["peer"]["engine"]


def test_a_peer_that_fails_says_why(trace: Path, fake_peer: None) -> None:
    settings = PeerWork("fails", str(trace), "float32", 2, 64, True)
    with trace_peer("fake", None, settings) as peer:
        assert peer.run() == (2.0, 12)
        with pytest.raises(PeerFailed, match="status 1: out of luck"):
            peer.run()
    with pytest.raises(ConfigError, match="cannot be run"):
        trace_peer("fake", "/nowhere/python", settings)
    with pytest.raises(ConfigError, match="expected one of transformers, vllm"):
        trace_peer("gpt", None, settings)


@pytest.mark.parametrize("python", [None, "/nowhere/python"])
def test_a_missing_peer_is_named_before_an_engine_starts(
    python: str | None, model: str, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(against.PEERS, "vllm", PeerProgram("vllm_peer.py", ("json", "no_vllm")))
    fake = FakeLLM()
    terminal = Terminal(io.StringIO(), io.StringIO(), io.StringIO())
    words = ["bench", "throughput", model, "--trace", str(trace), "--against", "vllm", *ENGINE]
    words += [] if python is None else ["--peer-python", python]
    status = main(words, terminal=terminal, open_llm=fake.open)
    assert isinstance(terminal.stderr, io.StringIO)
    problem = "no no_vllm. Name a Python" if python is None else f"{python} cannot be run"
    assert status != 0 and problem in terminal.stderr.getvalue()
    assert not fake.opened


@pytest.mark.slow
def test_latency(model: str) -> None:
    words = ["--input-len", "4", "--output-len", "3", "--batch-size", "2", "--num-iters", "3"]
    lines, found = lines_and_result("latency", model, *words, *ENGINE)
    assert len(found["latencies"]) == 3 and found["percentiles"]["50"] > 0
    name = Path(model).name
    assert found["command"].startswith(f"jengine bench latency {name} --input-len 4")
    assert re.fullmatch(r"Avg latency: \d+\.\d+ seconds", lines[0])
    assert [line.split("%")[0] for line in lines[1:]] == ["10", "25", "50", "75", "90", "99"]
    for line in lines[1:]:
        assert re.fullmatch(r"\d+% percentile latency: \d+\.\d+ seconds", line)
    for more in (["--n", "2"], ["--n", "2", "--use-beam-search"]):
        _, found = lines_and_result("latency", model, *words, *more, *ENGINE)
        assert (found["n"], found["use_beam_search"]) == (2, len(more) > 2)
        assert " ".join(["--batch-size", "2", *more]) in found["command"]


def test_startup_finds_bytecode_of_the_run_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    found = startup.environment("caches", "kept")
    assert found["PYTHONPYCACHEPREFIX"] == str(Path("kept/bytecode"))
    assert "PYTHONDONTWRITEBYTECODE" not in found and found["XDG_CACHE_HOME"] == "caches"


@pytest.mark.slow
def test_startup_measures_cold_and_warm(model: str) -> None:
    found = result("startup", model, "--num-iters-cold", "0", "--num-iters-warm", "1", *ENGINE)
    assert 0 < found["warm"]["imports_s"] < found["warm"]["ready_s"]
    assert found["warm"]["ready_s"] < found["warm"]["first_token_s"]
    assert "cold" not in found


@pytest.mark.slow
def test_load_measures_speed_and_memory(model: str, tmp_path: Path) -> None:
    lines, found = lines_and_result("load", model, "--repeats", "2", "--dtype", "bfloat16")
    file = Path(model) / "model.safetensors"
    assert found["stored_gb"] == pytest.approx(file.stat().st_size / 1e9, abs=1e-4)
    assert len(found["seconds"]) == 2 and found["dtype"] == "bfloat16"
    assert found["gb_s"] == pytest.approx(
        file.stat().st_size / 1e9 / min(found["seconds"]), abs=0.02
    )
    assert min(found["read_gb_s"], *found["copy_gb_s"].values()) > 0
    assert found["host_memory_over_weights_gb"] < 1
    assert lines[0].startswith("Load: ") and "Limits: " in lines[1]


@pytest.mark.slow
def test_load_writes_random_weights_for_a_config(model: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((Path(model) / "config.json").read_text())
    with load.folder_of_weights(tmp_path) as folder:
        found = load.loads(str(folder), "auto", 1)
    assert not folder.exists() and os.listdir(tmp_path) == ["config.json"]
    assert found["stored_gb"] == pytest.approx(
        (Path(model) / "model.safetensors").stat().st_size / 1e9, abs=1e-4
    )


def test_peak_memory_is_of_this_process_alone() -> None:
    """A child's ru_maxrss starts at what its parent held."""
    held = bytearray(2 * 10**8)
    program = "from jengine.bench.machine import peak_bytes; print(peak_bytes())"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    assert peak_bytes() - int(done.stdout) > len(held) / 2


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_are_the_same_every_time(name: str, tmp_path: Path) -> None:
    def items_of(seed: int) -> list[Item]:
        return generated(name, 1000, 5, seed, encode=lambda text: [ord(one) for one in text])

    items = items_of(3)
    assert items == items_of(3) != items_of(4)
    write_trace(items, tmp_path / "trace")
    assert read_trace(tmp_path / "trace") == items
    assert all(0 <= token < 1000 for item in items for token in item.prompt_token_ids)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["throughput"], "bench throughput needs a model"),
        (["host", "demo"], "bench host has no model"),
        (["growth"], "bench growth needs a model"),
        (["load"], "bench load needs a model"),
        (["load", "demo", "--max-num-seqs", "2"], "takes --dtype, and not --max-num-seqs"),
        (["growth", "demo", "--from", "x.json"], "bench growth has no model"),
        (["growth", "--from", "/nowhere.json"], "expected what bench growth --output-json wrote"),
        (["growth", "demo", "--contexts", "0"], "--contexts 0: expected 1 or more"),
        (["host", "--plots", "here"], "--plots: only bench growth and bench serve draw"),
        (["latency", "demo", "--batch-size", "0"], "--batch-size 0: expected 1 or more"),
        (["latency", "demo", "--n", "0"], "--n 0: expected 1 or more"),
        (["latency", "demo", "--output-json", "/nowhere/at/all"], "in a folder that exists"),
        (["throughput", "demo", "--num-prompts", "0"], "--num-prompts 0: expected 1 or more"),
        (["latency", "demo", "--num-iters-warmup", "-1"], "--num-iters-warmup -1: expected 0"),
        (["startup", "demo", "--num-iters-cold", "0", "--num-iters-warm", "0"], "measures nothing"),
    ],
)
def test_bad_input(words: list[str], message: str) -> None:
    status, _, errors = bench(*words)
    assert status == 1 and message in errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trace", "/nowhere.jsonl"], "--trace '/nowhere.jsonl' cannot be read"),
        (["--workload", "mixd"], "Did you mean 'mixed'"),
        (["--against", "gpt"], "expected one of transformers, vllm"),
        (["--against", "plain"], "expected --speculative-config or --quantization"),
    ],
)
def test_what_is_misspelt_is_said_before_an_engine_starts(words: list[str], message: str) -> None:
    def open_llm(*_: object, **__: object) -> LLM:
        raise AssertionError("an engine was started")

    terminal = Terminal(io.StringIO(), io.StringIO(), io.StringIO())
    command = ["bench", "throughput", "demo", *words]
    assert main(command, terminal=terminal, open_llm=open_llm) == 1
    assert isinstance(terminal.stderr, io.StringIO) and message in terminal.stderr.getvalue()


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
    for peer in against.PEERS.values():
        assert "jengine" not in (against.PROGRAMS / peer.file).read_text(), sys.version
