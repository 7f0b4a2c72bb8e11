"""The benchmarks run and print what they promise; nothing here looks at how fast."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from jengine.bench import host, throughput
from tests.models.tiny_models import write_tiny_native


def test_host_bench_measures_every_size(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["host", "--running", "2", "5", "--steps", "4"])
    host.main()
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["running"] for row in last["results"]] == [2, 5]
    for row in last["results"]:
        parts = row["schedule_and_commit_ms"] + row["pack_ms"]
        assert row["total_ms"] == pytest.approx(parts, abs=1e-3)


def test_throughput_reads_a_trace_and_counts_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_tiny_native(tmp_path / "model", "qwen3")
    trace = tmp_path / "trace.jsonl"
    work = [([5, 6, 7], 4), ([8] * 20, 2), ([9], 6)]
    lines = [json.dumps({"prompt_token_ids": ids, "max_tokens": n}) for ids, n in work]
    trace.write_text("\n".join(lines))
    options = ["--max-num-seqs", "2", "--max-model-len", "64", "--repeats", "2"]
    monkeypatch.setattr(sys, "argv", ["throughput", str(model), str(trace), *options])
    throughput.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["requests"] == 3
    assert result["generated"] == 12, "greedy, with the end token ignored"
    assert len(result["seconds"]) == 2
    assert result["output_tok_s"] > 0
    assert all(program["hits"] >= 0 for program in result["programs"])
