"""The pages of results show those that are kept, and every bench has its row."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from jengine.bench.table import __main__ as table
from jengine.bench.table.ratio_chart import Compared, ratio_chart
from jengine.cli.bench import KINDS

HARDWARE = {"processor": "Some CPU", "cores": 2, "memory_gb": 25.3, "devices": ["cpu"]}
AROUND = {"command": "jengine bench x", "commit": "abc1234", "hardware": HARDWARE, "versions": {}}
THROUGHPUT = {
    "bench": "throughput", **AROUND, "workload": "decode", "requests": 8, "dtype": "bfloat16",
    "parameters": 134_515_008, "output_tok_s": 1234.5,
}  # fmt: skip
AGAINST = {
    **THROUGHPUT, "workload": "work.jsonl", "ratio": 0.3571,
    "peer": {"engine": "vllm 0.32", "output_tok_s": 31.25},
}  # fmt: skip
STARTUP = {"bench": "startup", **AROUND, "settings": {}, "cold": {"first_token_s": 12.34}}
SERVE = {
    "bench": "serve", **AROUND, "completed": 64, "max_concurrency": 32, "total_input_tokens": 1000,
    "total_output_tokens": 2000, "output_throughput": 99.5,
}  # fmt: skip
HOST = {"bench": "host", **AROUND, "results": [{"running": 1024, "total_ms": 2.345}]}


def test_the_readmes_show_the_results() -> None:
    """`python -m jengine.bench.table` writes them there."""
    assert table.main(["--check"]) == 0


def test_every_bench_has_rows() -> None:
    own = {
        "adapters",
        "conversations",
        "cpu_kernels",
        "embeddings",
        "fidelity",
        "grammars",
        "hostile_grammars",
        "images",
        "disaggregated",
        "first_uses",
        "marathon",
        "ray_rows",
        "rounding",
        "schemes",
        "simulation proof",
        "strangers",
        "waiting",
    }  # modules of their own
    assert set(table.KINDS) == {*KINDS, *own}


def test_every_kept_result_is_named_where_it_is_told_how_to_make_it() -> None:
    told = (table.RESULTS.parent / "README.md").read_text()
    names = {file.name for file in table.RESULTS.glob("*.json")} - set(table.NOT_TIMED)
    assert names
    for name in names:
        assert f"$R/{name}" in told


def test_kept_results_are_of_commits() -> None:
    """A + would say that files had changed since."""
    for result in table.kept():
        assert result["commit"].isalnum(), result["command"]


def test_rows_say_what_was_measured() -> None:
    lines = table.rows_of([AGAINST, THROUGHPUT, STARTUP, HOST]).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert all(len(row) == len(table.HEAD) for row in cells)
    assert cells[2] == [
        "work.jsonl: 8 requests; 135M parameters in bfloat16", "1,234 tok/s",
        "31.2 tok/s, vllm 0.32", "0.36", "2 cores of Some CPU", "`jengine bench x`, abc1234",
    ]  # fmt: skip
    assert "prompts of 100 tokens" in cells[3][0] and cells[3][2:4] == ["", ""]
    assert cells[4][0].startswith("process to first token, cold caches, serving when all steps")
    assert cells[4][1] == "12.3 s"
    assert cells[5][:2] == ["Python of a step, 1,024 running requests", "2.35 ms"]


def test_rows_of_servers() -> None:
    against = {**SERVE, "output_tok_s": 200.0, "ratio": 2.0, "peer": AGAINST["peer"]}
    clocked = {**SERVE, "max_concurrency": None, "added_latency_ms": {"p99": 4.25}}
    lines = table.rows_of([SERVE, against, clocked]).splitlines()[2:]
    work = "served: 64 requests, 32 at once, 1,000 prompt and 2,000 output tokens"
    assert lines[0].startswith(f"| {work} | 99.5 tok/s |  |")
    assert lines[1].startswith(f"| {work} | 200 tok/s | 31.2 tok/s, vllm 0.32 | 2.00 |")
    assert "all at once" in lines[2] and "end of a step to the client, p99 | 4.2 ms" in lines[2]
    assert "computes nothing | 99.5 tok/s |" in lines[3]


def test_rows_of_grammars() -> None:
    found = {"bench": "grammars", **AROUND, "finished": 9, "fitting": 9}
    masks = {**found, "vocabulary": 32_000, "mask_ms": {"p99": 0.0895}}
    engine = {**found, "ruled_tokens_per_s": 950.0, "free_tokens_per_s": 1000.0, "ratio": 0.95}
    lines = table.rows_of([masks, engine]).splitlines()[2:]
    assert "vocabulary of 32,000; 9 of 9 finished answers fit their JSON schemas; p99" in lines[0]
    assert "| 950 tok/s | 1,000 tok/s, no grammar | 0.95 |" in lines[1]


def test_rows_of_fidelity() -> None:
    row = {"family": "llama", "implementation": "cpu", "draws": 4, "largest": 2e-5, "worst": 7,
           "failed": {}, "ill_conditioned": 1, "instructions": "AVX2"}  # fmt: skip
    none = {**row, "draws": 0, "largest": 0.0, "worst": None}
    rows = [row, {**row, "implementation": "xla", "family": "gpt2"}, {**none, "family": "gpt2"},
            {**none, "implementation": "tp2"}]  # fmt: skip
    found = {"bench": "fidelity", **AROUND, "families": rows}
    made, other = table.trials.fidelity(found)
    assert made.ours == "2.0e-05" and ", xla (AVX2)" in other.work
    assert made.work.startswith("4 random configs of 1 families, cpu (AVX2), beside transformers")
    assert made.work.endswith("of llama, draw 7; 0 failed, 1 ill-conditioned")


def test_rows_of_hostile_grammars() -> None:
    each = {"a": {"free_tokens_per_s": 500.0}, "b": {"free_tokens_per_s": 900.0}}
    found = {"bench": "hostile_grammars", **AROUND, "free_tokens_per_s": 1000.0,
             "slowest_s": 1.234, "grammars": each}  # fmt: skip
    lines = table.rows_of([found]).splitlines()[2:]
    assert "had ended | 1.23 s |" in lines[0]
    assert "| 500 tok/s | 1,000 tok/s, without | 0.50 |" in lines[1]


def test_rows_of_marathons() -> None:
    faults = [{"recovery_s": 0.0}, {"recovery_s": 7.5}]
    found = {
        "bench": "marathon", **AROUND, "requests": 1234, "seconds": 600.2, "lost_count": 0,
        "injections": faults, "memory_slope_mib_per_minute": None,
    }  # fmt: skip
    calm = {**found, "injections": [], "memory_slope_mib_per_minute": -0.125}
    lines = table.rows_of([found, calm]).splitlines()[2:]
    work = "1,234 requests in 600 s of load"
    assert lines[0].startswith(f"| {work}, 2 faults; requests lost | 0 |")
    assert lines[1].startswith(f"| {work}, 2 faults; longest until it answered again | 7.5 s |")
    assert lines[2].startswith(f"| {work}, no faults; requests lost | 0 |")
    never = {**found, "injections": [{"recovery_s": None}]}
    assert "| inf s |" in table.rows_of([never])
    assert lines[3].startswith(f"| {work}, no faults; growth of memory | -0.12 MiB a minute |")


def test_rows_of_requests_made_to_do_harm() -> None:
    found = {
        "bench": "strangers", **AROUND, "requests": 1234, "settings": {"seconds": 60.0},
        "errors": ["one"], "resident_mb": {"before": 500.0, "most": 900.0, "after": 612.3},
        "bystanders": {"answered": 1001, "failures": [], "median_s": 0.1, "slowest_s": 1.256},
    }  # fmt: skip
    lines = table.rows_of([found]).splitlines()[2:]
    work = "| 1,234 requests made to do harm in 60 s, 1,001 of bystanders; "
    assert lines[0].startswith(f"{work}errors 5xx, unanswered bystanders | 1, 0 |")
    assert lines[1].startswith(f"{work}longest wait of a bystander | 1.26 s |")
    assert lines[2].startswith(f"{work}growth of memory | 112 MB of 500 |")


def test_rows_of_a_pair_of_servers() -> None:
    found = {
        "bench": "disaggregated", **AROUND, "requests": 1234, "lost_count": 2,
        "settings": {"prompts": 200, "input_tokens": 128, "seconds": 600.0},
        "pair": {"output_throughput": 500.0, "p99_itl_ms": 9.0},
        "mixed": {"output_throughput": 1000.0, "p99_itl_ms": 6.0},
        "lost_with_the_decode_server": 7,
        "kills": [{"recovery_s": 3.0}, {"recovery_s": 6.5}],
    }  # fmt: skip
    lines = table.rows_of([found]).splitlines()[2:]
    assert "200 prompts of 128 tokens | 500 tok/s | 1,000 tok/s, one server | 0.50 |" in lines[0]
    assert "ITL p99, ms | 9.0 | 6.0, one server | 1.50 |" in lines[1]
    trial = "| 1,234 requests to the pair in 600 s, 2 kills; "
    assert lines[2].startswith(f"{trial}lost, beside 7 that a killed server decoded | 2 |")
    assert lines[3].startswith(f"{trial}longest until a server was back | 6.5 s |")
    never = {**found, "kills": [{"recovery_s": None}]}
    assert "| inf s |" in table.rows_of([never])


def test_host_rows_name_the_context_that_they_were_measured_with() -> None:
    rows = [{"running": 16, "max_model_len": length, "total_ms": 0.2} for length in (188, 131_072)]
    lines = table.rows_of([{**HOST, "results": rows}]).splitlines()[2:]
    assert "16 running requests, context up to 188 |" in lines[0]
    assert "16 running requests, context up to 131,072 |" in lines[1]


def test_an_early_start_is_told_apart() -> None:
    early = {**STARTUP, "settings": {"compilation_config": {"wait_for": "largest"}}}
    assert "serving when the largest step is compiled" in table.rows_of([early])


def test_gpus_stand_first() -> None:
    devices = {**HARDWARE, "devices": ["NVIDIA H200"]}
    assert table.hardware_of({"hardware": devices}) == "NVIDIA H200, 2 cores of Some CPU"


@pytest.mark.parametrize(
    ("count", "words"), [(2_345_678, "2.3M"), (134_515_008, "135M"), (8e9, "8.0B"), (999, "999")]
)
def test_counts_in_short(count: Any, words: str) -> None:
    assert table.in_short(int(count)) == words


def test_tables_are_written_between_their_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_peers, alone, results = tmp_path / "A.md", tmp_path / "B.md", tmp_path / "results"
    results.mkdir()
    tables = {with_peers: table.with_peer, alone: table.without_peer}
    monkeypatch.setattr(table, "TABLES", tables)
    monkeypatch.setattr(table, "RESULTS", results)
    monkeypatch.setattr(table, "CHART", tmp_path / "chart.svg")
    monkeypatch.setattr(table, "HEADLINES", ["b.json"])
    for name, result in (("a", HOST), ("b", AGAINST)):
        (results / f"{name}.json").write_text(json.dumps(result))
    (results / "gpu-proof.json").write_text("{}")
    for file in (with_peers, alone):
        file.write_text(f"before\n{table.BEGIN}old\n{table.END}after\n")
    assert table.main(["--check"]) == 1
    said = capsys.readouterr().err
    assert "python -m jengine.bench.table" in said and "A.md" in said and "B.md" in said
    assert "old" in with_peers.read_text()
    assert table.main([]) == 0 and table.main(["--check"]) == 0
    for file, shown, other in ((with_peers, "vllm", "running"), (alone, "running", "vllm")):
        text = file.read_text()
        assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
        assert shown in text and other not in text
    alone.write_text("no marks")
    with pytest.raises(SystemExit, match="expected one"):
        table.main([])


def test_bars_are_as_long_as_ratios() -> None:
    pairs = [Compared("one & two", "", 1.5), Compared("slow", "1 tok/s", 0.5),
             Compared("beyond", "", 9.0)]  # fmt: skip
    chart = ratio_chart("Title", pairs, most=2.0)
    bars = re.findall(r'<rect class="(\w+)" .*?width="([\d.]+)"', chart)
    assert [look for look, _ in bars] == ["ours", "peer", "ours"]
    lengths = [float(length) for _, length in bars]
    assert lengths[0] == pytest.approx(3 * lengths[1], abs=0.2)
    assert lengths[2] == pytest.approx(4 * lengths[1], abs=0.2), "cut at the most"
    assert "one &amp; two" in chart and ">9.00 →<" in chart


def test_rows_of_growth_say_how_time_and_bytes_grow() -> None:
    steps = [
        {"rows": 8, "context": context, "reading_ms": taken, "read_bytes": moved, "floor_ms": None}
        for context, taken, moved in ((128, 9.0, 290), (512, 10.0, 360), (8192, 40.0, 1800))
    ]
    found = {"bench": "growth", **AROUND, "decode": steps}
    longest = table.rows_of([found]).splitlines()[-1]
    assert longest.startswith(
        "| decode step of 8 rows at a context of 8,192 | 4.00 times that at 512 "
        "| 5.00 times its bytes | 0.80 |"
    )
    without = {**found, "decode": [steps[0], steps[2]]}
    assert (
        len(table.rows_of([without]).splitlines()) == len(table.rows_of([found]).splitlines()) - 1
    )
