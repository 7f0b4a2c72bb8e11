"""The GPU check runs everywhere, finds what is wrong, and keeps what it has when it is stopped."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jengine.bench.driver import Driver, read_bytes, weight_bytes
from jengine.bench.gpu import __main__ as check
from jengine.bench.gpu import case_inputs, ceilings, compared, kernels, models, numerics, stages
from jengine.bench.gpu.cases import DRY, REAL, AttentionCase
from jengine.bench.gpu.kept import markdown
from jengine.bench.gpu.part import StageResult, stage_parser
from jengine.bench.gpu.report import printed, shares, succeeded
from jengine.bench.gpu.stages import STAGES, Settings, Stage
from pallas_kernels.tuning import first_match, table

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


def measured(
    module: Any, tmp_path: Path, *, seconds: float = 1000.0, **arguments: Any
) -> dict[str, Any]:
    """What a stage writes in a dry run, in this process."""
    part = StageResult(tmp_path / "part.json", seconds)
    given = stage_parser().parse_args(["--part", str(part.path), "--dry-run"])
    module.measure(part, argparse.Namespace(**{**vars(given), **arguments}))
    written = json.loads(part.path.read_text())
    assert written == part.content
    assert not part.failed, [line for line in part.content["lines"] if "failed" in line]
    return written


def kinds(part: dict[str, Any]) -> set[str]:
    return {line["what"] for line in part["lines"]}


def test_ceilings(tmp_path: Path) -> None:
    part = measured(ceilings, tmp_path)
    assert kinds(part) == {"copy", "reading", "product bfloat16", "product float16"}
    assert all(line["best_us"] > 0 for line in part["lines"])


@pytest.mark.slow
def test_numerics_are_right(tmp_path: Path) -> None:
    part = measured(numerics, tmp_path)
    assert kinds(part) == {"attention", "rotate and write", "written codes", "sampling"}
    assert len(part["lines"]) >= 11
    assert all(line["right"] is True for line in part["lines"])


@pytest.mark.parametrize("codes", ["int8", "fp8"])
def test_codes_cost_attention_no_more_than_rounding_does(codes: str) -> None:
    """The reference holds what the cache holds, not what encoding that again would make of it."""
    case = AttentionCase(2, 300, 100, kv_heads=2, codes=codes)
    assert numerics.attention_error(case, (17, 300), "xla") < 5e-3


@pytest.mark.slow
def test_numerics_find_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attend, sample, write = numerics.attend, numerics.sample_tokens, numerics.write_cache
    monkeypatch.setattr(
        numerics, "attend",
        lambda *a, **k: lambda *case_inputs: attend(*a, **k)(*case_inputs) * np.float32(1.1),
    )  # fmt: skip
    monkeypatch.setattr(
        numerics, "sample_tokens",
        lambda *a, implementation: sample(*a, implementation="xla") + (implementation != "xla"),
    )  # fmt: skip
    monkeypatch.setattr(
        numerics, "write_cache",
        lambda cache, layer, k, v, slots, name: write(cache, layer, v, k, slots, name),
    )  # fmt: skip
    monkeypatch.setattr(numerics, "implementation_here", lambda: "triton")
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    part = measured(numerics, tmp_path)
    assert all(line["right"] is False for line in part["lines"])
    parts = {"numerics": {**part, "status": "done"}}
    assert not succeeded(parts)
    assert "WRONG: rotate and write float32" in printed(
        {"dry_run": False, "command": "", "parts": parts}
    )


def test_kernels_are_called_as_engines_call_them() -> None:
    """Prompts in short tiles that are joined; decodes with leading blocks in common."""
    few = AttentionCase(2, 100, 50, kv_heads=2, group=4, head_dim=8, dtype="float32")
    found = case_inputs.attention_arrays(few, 1 << 16)
    assert found.q.shape[0] == found.lengths.size == 2 * 7 * 8, "7 tiles of 8 for 50 tokens"
    assert case_inputs.joined_tiles(few) == 4, "32 tokens of four heads are 128 queries"
    assert found.runs.tolist() == [0, 4, 7, 11, 14]
    shared = replace(few, rows=3, context=64, new_tokens=1, shared=32)
    tables = np.asarray(case_inputs.attention_arrays(shared, 1 << 16).tables)
    assert (tables[:, :2] == tables[0, :2]).all()
    assert len(set(tables[:, 2:].ravel().tolist())) == tables[:, 2:].size
    assert shared.cache_bytes == (3 * 32 + 32) * 2 * 2 * 8 * 4
    assert any(check.shared for check in numerics.checks(dry_run=False))


@pytest.mark.parametrize(("passed", "status"), [(True, 0), (False, 1), (False, 2)])
def test_the_engine_is_compared_with_torch(
    passed: bool, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def run(words: list[str], **_: Any) -> Any:
        asked.append(words)
        verdict = {"verdict": "as said", "passed": passed}
        Path(words[words.index("--json") + 1]).write_text(json.dumps(verdict))
        return SimpleNamespace(returncode=status, stderr="no such model")

    monkeypatch.setattr(compared.subprocess, "run", run)
    part = StageResult(tmp_path / "part.json", 100)
    args = argparse.Namespace(dry_run=False, peer_python="a-python")
    compared.measure(part, args)
    assert [words[words.index("--dtype") + 1] for words in asked] == ["bfloat16", "float32"]
    assert all(words[words.index("--torch-python") + 1] == "a-python" for words in asked)
    if status == 2:
        assert all("no such model" in line["failed"] for line in part.content["lines"])
    else:
        assert [line["right"] for line in part.content["lines"]] == [passed] * 2


def test_a_result_that_is_not_finite_is_wrong() -> None:
    assert numerics.relative_error(np.array([[1.0, np.nan]]), np.ones((1, 2))) == np.inf
    assert numerics.relative_error(np.array([[1e-9], [1.0]]), np.array([[0.0], [1.0]])) > 1


def test_every_token_counts_by_its_own_size() -> None:
    expected = np.array([[100.0, 1.0], [0.1, 0.01]])
    assert numerics.relative_error(expected + 0.001, expected) == pytest.approx(0.01)


def test_numerics_cover_what_kernels_promise() -> None:
    found = numerics.checks(dry_run=False)
    assert {check.head_dim for check in found} == {64, 80, 96, 128, 256}
    assert {check.dtype for check in found} == {"float32", "float16", "bfloat16"}
    assert {check.group for check in found} >= {1, 4, 7, 16}
    assert {check.new_tokens == 1 for check in found} == {True, False}
    assert any(check.sinks for check in found)


@pytest.mark.slow
def test_kernels(tmp_path: Path) -> None:
    part = measured(kernels, tmp_path)
    assert kinds(part) == {"decode attention", "prefill attention", "sampling", "rotate and write"}
    assert {line["implementation"] for line in part["lines"] if line["what"] == "sampling"} > {
        kernels.ENGINE
    }
    for line in part["lines"]:
        assert ("tflop_s" in line) == (line["what"] == "prefill attention")


@pytest.mark.slow
@needs_triton
def test_sweep_writes_tables_and_leaves_ours_alone(tmp_path: Path) -> None:
    from jengine.bench.gpu import sweep

    operations = ("decode_attention", "prefill_attention", "cache_write", "token_sampling")
    before = {name: json.dumps(table(name)) for name in operations}
    wanted = sweep.searches(DRY, dry_run=True)
    search = wanted[0]
    with sweep.in_use(search, {"tokens": 99}):
        assert table(search.operation)["entries"][0]["use"] == {"tokens": 99}
    assert json.dumps(table(search.operation)) == before[search.operation]
    try:
        part = measured(sweep, tmp_path)
    finally:
        changed = {name: json.loads(json.dumps(table(name))) for name in operations}
        for name in operations:
            table(name)["entries"][:] = json.loads(before[name])["entries"]
    best = [line for line in part["lines"] if "best" in line]
    assert [line["what"] for line in best] == [search.operation for search in wanted]
    for line in best:
        written = json.loads((tmp_path / "tuning" / f"{line['what']}.json").read_text())
        assert written["entries"] == changed[line["what"]]["entries"]
        facts = {"group": 4, "tile": 32, "lanes": 8, **line["when"]}
        assert first_match(written["entries"], facts)["use"] == line["best"]
        old = json.loads(before[line["what"]])
        assert written["entries"][-1] == old["entries"][-1], "the last resort stays"
        assert {k: written[k] for k in written if k not in ("note", "entries")} == {
            k: old[k] for k in old if k not in ("note", "entries")
        }


@pytest.mark.slow
@pytest.mark.parametrize("few", [False, True])
def test_models(few: bool, tmp_path: Path) -> None:
    part = measured(models, tmp_path, model="qwen3-0.6b", few=few)
    assert kinds(part) == {"start", "compile", "decode"} | (
        set() if few else {"prompts", "answers"}
    )
    decodes = [line for line in part["lines"] if line["what"] == "decode"]
    assert [(line["rows"], line["context"]) for line in decodes] == [(1, 32), (2, 32)]
    assert len(part["left_out"]) == (0 if few else 2), "contexts that do not fit are named"
    for line in decodes:
        assert line["queued_ms"] > 0
        assert line["gap_ms"] == pytest.approx(line["reading_ms"] - line["queued_ms"], abs=2e-3)


@pytest.mark.parametrize("captured", [False, True])
def test_tensor_parallel_models(
    captured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = measured(models, tmp_path, model="llama-8b", tensor_parallel=True)
    assert alone["left_out"] == ["tensor parallelism: there is one device"]
    monkeypatch.setattr(models.jax, "device_count", lambda: 7)
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(models, "LLM", lambda *_, **settings: asked.append(settings))
    with pytest.raises(TypeError, match="context manager"):  # this LLM is None
        measured(models, tmp_path, model="llama-8b", tensor_parallel=True, captured=captured,
                 long_graphs=captured)  # fmt: skip
    assert asked[0]["tensor_parallel_size"] == 2  # the tiny model has 2 KV heads
    assert asked[0]["compilation_config"]["capture_collectives"] is captured
    assert asked[0]["compilation_config"]["short_graphs"] is not captured


@pytest.mark.slow
def test_rows_that_claim_a_past_have_blocks_of_their_own(tmp_path: Path) -> None:
    folder = models.write_config(tmp_path / "model", DRY.models["llama-8b"])
    with models.open_llm(folder, DRY, [(2, 32)]) as llm:
        driver = Driver(llm)
        plans = list(driver.plans(2, 32, 4))
        blocks = [block for new in plans[0].new_blocks for block in new.blocks]
        assert len(set(blocks)) == len(blocks)
        assert 0 not in blocks, "the null block belongs to no row"
        assert len(blocks) * llm.engine.cache.block_size >= 2 * (32 + len(plans))
        assert [[one.start for one in plan.entries] for plan in plans[:3]] == [
            [31, 31], [32, 32], [33, 33]
        ]  # fmt: skip
        longest = llm.engine.schedule.max_model_len
        assert max(plan.entries.starts[0] for plan in driver.plans(1, longest, 4)) == longest - 1
        assert driver.fits(2, 32, 4)
        assert not driver.fits(2, longest + 1, 4)
        leaves = weight_bytes(llm)
        assert read_bytes(llm) == leaves - 96 * 32 * 4, "an embedding is not read whole"


def test_operations_and_bytes_of_attention() -> None:
    case = AttentionCase(3, 50, 20, kv_heads=2, group=5, head_dim=16)
    pairs = sum(position + 1 for position in range(30, 50))
    assert case.operations == 3 * 2 * 5 * pairs * 16 * 2 * 2
    assert case.cache_bytes == 3 * 50 * 2 * 2 * 16 * 2


def test_real_sizes_are_what_was_promised() -> None:
    assert REAL.model_rows == (1, 8, 32, 64, 128)
    assert REAL.model_contexts == (1024, 4096, 16_384)
    assert set(REAL.models) == {"qwen3-0.6b", "llama-8b"}
    assert max(case.cache_bytes for case in REAL.decode) > 100e6
    assert any((case.rows, case.longest) == (256, 131_072) for case in REAL.decode)
    assert REAL.max_model_len is None, "tables as long as the model's contexts"


# --- the main program ------------------------------------------------------------------------


@pytest.mark.slow
def test_stages_run_one_after_the_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--out", str(tmp_path), "--dry-run", "--stages"]
    assert check.main([*words, "device"]) == 0
    assert check.main([*words, "ceilings"]) == 0
    whole = json.loads((tmp_path / "gpu.json").read_text())
    assert list(whole["parts"]) == ["device", "ceilings"], "what an earlier run found stays"
    assert whole["command"].endswith("--stages ceilings")
    device = whole["parts"]["device"]["lines"][0]
    assert device["platform"] == "cpu"
    assert {"commit", "hardware", "versions", "driver"} <= set(device)
    assert {name: whole[name] for name in ("commit", "hardware", "versions")}.items() <= (
        device.items()
    )
    text = capsys.readouterr().out
    assert json.loads(text.splitlines()[-1]) == whole, "the last line says it all"
    assert f"jax {device['versions']['jax']}" in text
    assert "DRY RUN" in text
    assert "gb_s" in text
    assert (tmp_path / "gpu.txt").read_text() in text
    assert check.main(["--out", str(tmp_path), "--stages", "device"]) == 2
    assert "give another --out" in capsys.readouterr().err


def test_without_a_gpu_a_real_run_ends_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.main(["--out", str(tmp_path), "--stages", "device", "ceilings"]) == 2
    error = capsys.readouterr().err
    assert "no GPU that jax can use" in error
    assert "--dry-run" in error
    assert not (tmp_path / "ceilings.json").exists()


@pytest.mark.slow
def test_torch_does_the_same_work(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    assert check.main(["--out", str(tmp_path), "--dry-run", "--stages", "torch"]) == 0
    part = json.loads((tmp_path / "torch.json").read_text())
    assert kinds(part) == {"decode attention", "prefill attention", "decode"}
    assert {line["model"] for line in part["lines"] if "model" in line} == set(DRY.models)
    assert all(line.get("reading_ms", 1) > 0 for line in part["lines"])


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    settings = Settings(tmp_path, True, str(tmp_path / "no-python"))
    stage = Stage("sweep", "sweep", 10, ("jax", "no_such_package"))
    part = check.run_one(stage, settings, 100)
    assert part["status"] == "skipped"
    assert "not installed: no_such_package" in part["reason"]
    assert "pip install --no-index" in part["reason"]
    torch = next(stage for stage in STAGES if stage.name == "torch")
    assert "cannot be run" in check.run_one(torch, settings, 100)["reason"]
    without = Settings(tmp_path, True, sys.executable)
    obstacle = stages.obstacle(torch, without)
    assert (obstacle is None) == (importlib.util.find_spec("torch") is not None)
    assert check.run_one(stage, settings, 1)["reason"] == "no time left for this stage"


WRITES_AND = """
import sys, time
from pathlib import Path
from jengine.bench.gpu.part import StageResult
part = StageResult(Path(sys.argv[1]), 5)
part.add(what="copy", gb_s=1.0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("then", "status", "reason"),
    [
        ("time.sleep(60)", "stopped", "stopped after"),
        ("raise ValueError('no such device')", "failed", "status 1: .*no such device"),
    ],
)
def test_a_stage_that_does_not_end_well_keeps_its_lines(
    then: str, status: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, stage = Settings(tmp_path, True, sys.executable), STAGES[1]
    file = stages.part_file(stage, settings)
    words = [sys.executable, "-c", WRITES_AND + then, str(file)]
    monkeypatch.setattr(check, "command", lambda *_: words)
    monkeypatch.setattr(check, "GRACE", 1)
    part = check.run_one(Stage(stage.name, stage.module, 6, ()), settings, 60)
    assert part == json.loads(file.read_text())
    assert part["status"] == status
    assert part["lines"] == [{"what": "copy", "gb_s": 1.0}]
    assert re.search(reason, part["reason"])
    assert succeeded({stage.name: part}) == (status != "failed")


def test_an_error_is_a_line_and_the_next_case_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempted = []

    def broken(check: numerics.Check, *_: Any) -> float:
        attempted.append(check)
        if len(attempted) == 1:
            raise RuntimeError("no such instruction")
        return 0.0

    monkeypatch.setattr(numerics, "attention_error", broken)
    monkeypatch.setattr(numerics, "sampling_cases", lambda *_: ())
    part = StageResult(tmp_path / "part.json", 100)
    arguments = argparse.Namespace(part=part.path, dry_run=True)
    numerics.measure(part, arguments)
    assert len(attempted) == 7
    lines = [line for line in part.content["lines"] if line["what"] == "attention"]
    assert lines[0]["failed"] == "RuntimeError: no such instruction"
    assert [line.get("right") for line in lines] == [None, *[True] * 6]
    assert part.failed
    text = printed({"dry_run": True, "command": "", "parts": {
        "numerics": {**part.content, "status": "failed"}}})  # fmt: skip
    assert "no such instruction" in text


def test_a_stage_out_of_time_names_what_it_left_out(tmp_path: Path) -> None:
    part = measured(ceilings, tmp_path, seconds=-1)
    assert kinds(part) == {"copy", "reading"}
    assert part["left_out"] == [
        "bfloat16: no time left", "float16: no time left",
    ]  # fmt: skip


def test_shares_of_the_ceilings() -> None:
    line = {"what": "decode attention", "gb_s": 30.0}
    parts = {
        "ceilings": {"lines": [{"what": "copy", "gb_s": 30.0}, {"what": "reading", "gb_s": 40.0}]},
        "kernels": {"lines": [line, {"what": "prefill attention", "tflop_s": 3.0}]},
    }
    shares(parts)
    assert line["of_memory"] == 0.75
    assert "of_product" not in parts["kernels"]["lines"][1], "no product was measured"


def test_a_kept_run_is_a_table_beside_torch() -> None:
    attention = {"what": "decode attention", "case": "64 x 4096 tokens", "best_us": 260.0}
    step = {"what": "decode", "model": "llama-8b", "rows": 8, "context": 1024, "reading_ms": 4.5}
    device = {"what": "device", "count": 1, "kind": "NVIDIA H200", "capability": "9.0",
              "driver": "580", "commit": "abc", "versions": {"jax": "0.11.2"}}  # fmt: skip
    parts = {
        "device": {"lines": [device]},
        "ceilings": {"lines": [{"what": "reading", "gb_s": 4000.0},
                               {"what": "product bfloat16", "tflop_s": 700.0}]},
        "kernels": {"lines": [{**attention, "gb_s": 3000.0}, {**attention, "failed": "broken"}]},
        "large-model": {"lines": [{**step, "gb_s": 3400.0, "tok_s": 1778.0}]},
        "torch": {"lines": [{**attention, "best_us": 310.0}, {**step, "reading_ms": 6.25}]},
        "copies": {"lines": [{**attention, "gb_s": 2000.0, "implementation": "triton"}]},
        "table-fa4": {"lines": [{"what": "table", "case": "1 x 9", "version": "jengine 2, fa4",
                                 "ms": 10.0, "tok_s": 90.0,
                                 "least": [{"times": 1, "bytes": 2e10, "operations": 1.0}]}]},
    }  # fmt: skip
    rows = markdown({"command": "python -m jengine.bench.gpu", "parts": parts}).splitlines()
    assert "NVIDIA H200" in rows[0] and "abc" in rows[0]
    assert rows[4:] == [
        "| decode attention | 64 x 4096 tokens | 260 µs | 3,000 GB/s | 75% | 310 µs |",
        "| decode attention by triton | 64 x 4096 tokens | 260 µs | 2,000 GB/s | 50% | 310 µs |",
        "| decode step of llama-8b | 8 x 1,024 tokens | 4.50 ms | 1,778 tok/s | 85% | 6.25 ms |",
        "| llama-8b by jengine 2, fa4 | 1 x 9 | 10 ms | 90 tok/s | 50% |  |",
    ]


def test_steps_with_and_without_command_buffers_lie_side_by_side() -> None:
    line = {"what": "decode", "rows": 8, "context": 1024, "queued_ms": 2.0}
    parts = {
        "small-model": {"lines": [line, {**line, "rows": 1}], "status": "done"},
        "without-command-buffers": {"lines": [{**line, "queued_ms": 3.0}], "status": "done"},
    }
    text = printed({"dry_run": False, "command": "", "parts": parts})
    assert "command buffers, 8 x 1024: 2.0 ms a step with, 3.0 without (1.50 x)" in text
    assert text.count("command buffers,") == 1


@pytest.mark.parametrize(
    ("what", "stage", "usual"),
    [
        ("captured collectives", "captured-collectives", "tensor-parallel"),
        ("graphs of few launches", "tensor-parallel", "long-graphs"),
        ("all matmuls by cuBLASLt", "cublaslt-alone", "xla-matmuls"),
    ],
)
def test_other_settings_lie_beside_the_usual_ones(what: str, stage: str, usual: str) -> None:
    assert {stage, usual} <= {one.name for one in STAGES}
    line = {"what": "decode", "rows": 8, "context": 1024, "queued_ms": 2.0}
    parts = {
        usual: {"lines": [line], "status": "done"},
        stage: {"lines": [{**line, "queued_ms": 2.5}], "status": "done"},
    }
    text = printed({"dry_run": False, "command": "", "parts": parts})
    assert f"{what}, 8 x 1024: 2.5 ms a step with, 2.0 without (0.80 x)" in text


def test_only_its_stage_runs_without_command_buffers() -> None:
    settings = Settings(Path("out"), False, sys.executable)
    given = {"XLA_FLAGS": "--mine", "TRITON_INTERPRET": "1", "PATH": "x"}
    for stage in STAGES:
        made = stages.environment(stage, settings, given)
        without = "--xla_gpu_enable_command_buffer=" in made["XLA_FLAGS"].split()
        assert without == (stage.name == "without-command-buffers")
        assert "--mine" in made["XLA_FLAGS"]
        assert ("--xla_dump_to=out/compiled-for" in made["XLA_FLAGS"]) == (stage.name == "device")
        assert "TRITON_INTERPRET" not in made, "the kernels run on the device"
        assert not {name for name in made if "MEM_FRACTION" in name}, "users set no such variable"
    kept = stages.environment(STAGES[0], settings, {"XLA_CLIENT_MEM_FRACTION": "0.5"})
    assert kept["XLA_CLIENT_MEM_FRACTION"] == "0.5"


@pytest.mark.slow
def test_the_models_stage_names_everything_it_imports() -> None:
    """What is missing must be said, not be the end of a process."""
    code = "import sys, jengine.bench.gpu.models; print(*{n.split('.')[0] for n in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=stages.checkout(), capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    project = tomllib.loads((stages.checkout() / "pyproject.toml").read_text())
    declared = {re.split("[^a-z0-9]", name)[0] for name in project["project"]["dependencies"]}
    assert declared & set(done.stdout.split()) <= set(stages.ENGINE_NEEDS)


def test_stages_fit_into_ten_minutes() -> None:
    assert check.arguments(["--out", "x"]).deadline < 600
    assert len({stage.name for stage in STAGES}) == len(STAGES)


def test_tables_of_a_dry_run_are_not_installed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        check.arguments(["--out", "x", "--dry-run", "--install-tables"])
    assert "a dry run measures nothing" in capsys.readouterr().err


def test_tables_are_installed_where_kernels_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out/tuning").mkdir(parents=True)
    (tmp_path / "out/tuning/cache_write.json").write_text("{}")
    (tmp_path / "pallas_kernels/cache_write").mkdir(parents=True)
    monkeypatch.setattr(check, "checkout", lambda: tmp_path)
    check.install_tables(Settings(tmp_path / "out", False, sys.executable))
    assert (tmp_path / "pallas_kernels/cache_write/tuning.json").read_text() == "{}"
    assert (stages.checkout() / "pallas_kernels/cache_write/tuning.json").is_file()


@pytest.mark.slow
def test_the_whole_dry_run(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "jengine.bench.gpu", "--out", str(tmp_path), "--dry-run"]
    words += ["--deadline", "1500"]
    done = subprocess.run(words, cwd=stages.checkout(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert list(parts) == [stage.name for stage in STAGES]
    statuses = {part["status"] for part in parts.values()}
    assert statuses <= {"done", "skipped"}
