"""The newer stages of the GPU check run on a CPU with tiny sizes, and say what is wrong."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jengine.bench.gpu import __main__ as check
from jengine.bench.gpu import canary, clock, device_trace, fa4, features, matmuls, steady
from jengine.bench.gpu.cases import DRY, REAL
from jengine.bench.gpu.page import page
from jengine.bench.gpu.part import StageResult, stage_parser
from jengine.bench.gpu.stages import STAGES, Settings, command, environment, obstacle
from pallas_kernels.tuning import first_match, table


def measured(module: Any, tmp_path: Path, **arguments: Any) -> dict[str, Any]:
    """What a stage writes in a dry run, in this process."""
    part = StageResult(tmp_path / "part.json", 1000)
    given = stage_parser().parse_args(
        ["--part", str(part.path), "--dry-run", "--model", "llama-8b"]
    )
    module.measure(part, argparse.Namespace(**{**vars(given), **arguments}))
    assert not part.failed, [line for line in part.content["lines"] if "failed" in line]
    return part.content


@pytest.mark.slow
def test_the_canary_runs_every_kernel_and_a_large_cache(tmp_path: Path) -> None:
    part = measured(canary, tmp_path)
    assert {line["what"] for line in part["lines"]} == {
        "program", "rotate and write", "attention", "sampling", "experts", "large cache"
    }  # fmt: skip
    assert all(line["right"] is True for line in part["lines"])
    assert REAL.cache_elements > 2**31


def test_the_canary_finds_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    attend, combine = canary.attended_at_the_end, canary.combine_rows
    monkeypatch.setattr(
        canary, "attended_at_the_end",
        lambda blocks, *rest: attend(blocks, *rest) * (1 + (blocks > 4)),
    )  # fmt: skip
    monkeypatch.setattr(canary, "combine_rows", lambda *a, **k: combine(*a, **k) * 1.01)
    assert canary.experts_error("float32", "xla") == pytest.approx(0.01, rel=0.01)
    assert canary.large_cache_error(DRY.cache_elements, 16, "float32", "xla") == 1.0


@pytest.mark.slow
def test_kernels_for_prompts_are_compared_timed_and_put_into_an_engine(tmp_path: Path) -> None:
    part = measured(fa4, tmp_path, model="qwen3-0.6b")
    assert [line["what"] for line in part["lines"]] == [
        "prompts", "prompts", "prefill attention", "prefill attention", "engine",
    ]  # fmt: skip
    assert all(line.get("right", True) is True for line in part["lines"])


def test_kernels_for_prompts_are_compared_for_each_kind_of_layer() -> None:
    assert {one.heads // one.kv_heads for one in fa4.TRIALS} == {1, 4, 7, 8}
    assert {one.head_dim for one in fa4.TRIALS} == {64, 80, 96, 128, 256}
    assert {one.block_size for one in fa4.TRIALS} == {16, 64, 128}
    assert {one.has_sinks for one in fa4.TRIALS if one.window} == {True, False}
    served = [one for one in fa4.TRIALS if one.rule is None]
    assert len(set(served)) == len(served) == len(fa4.TRIALS) - 4


def test_kernels_for_prompts_that_are_wrong_are_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fa4, "errors", lambda *_: {"outputs": 0.001, "log-sum-exps": 0.1})
    line = fa4.compared(fa4.FIRST, "fa4")
    assert (line["right"], line["implementation"], line["lse_error"]) == (False, "fa4", 0.1)
    line = fa4.compared(fa4.FIRST._replace(block_size=16), "fa4")
    assert line["implementation"] == "triton: blocks of another size than 128 tokens"


def test_kernels_for_prompts_that_are_not_installed_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fa4, "missing", lambda: "Install jengine[fa4].")
    part = measured(fa4, tmp_path, dry_run=False)
    assert part["left_out"] == ["FlashAttention-4's kernels: Install jengine[fa4]."]
    assert part["lines"] == []


@pytest.mark.parametrize(
    ("tokens", "logprobs", "error"),
    [
        ([5, 6, 7], [-1.0, -2.0, -3.5], 0.5),
        ([5, 8, 7], [-1.0, -2.25, -9.0], 0.25),  # what follows another token is another answer
    ],
)
def test_answers_are_compared_to_where_they_differ(
    tokens: list[int], logprobs: list[float], error: float
) -> None:
    assert fa4.apart([(tokens, logprobs)], [([5, 6, 7], [-1.0, -2.0, -3.0])]) == error


def test_matmuls_write_the_table_that_programs_read(tmp_path: Path) -> None:
    before = list(table("xla_matmul")["entries"])
    try:
        part = measured(matmuls, tmp_path)
    finally:
        table("xla_matmul")["entries"][:] = before
    libraries = [line["implementation"] for line in part["lines"] if "implementation" in line]
    assert libraries == ["cublaslt", "xla"] * len(DRY.matmul_tokens)
    written = json.loads((tmp_path / "tuning/xla_matmul.json").read_text())["entries"]
    assert written[-len(before) :] == before
    best = part["lines"][-1]["best"]
    for tokens, library in best.items():
        facts = {"capability": matmuls.capability(), "tokens": tokens}
        assert first_match(written, facts)["use"]["library"] == library
    assert 8192 in REAL.matmul_tokens and REAL.matmul_dtype == "bfloat16"


def test_sizes_between_go_by_the_next_larger_one() -> None:
    entries = matmuls.entries_of([(8, "xla"), (64, "cublaslt"), (256, "xla")])
    here = matmuls.capability()
    found = {
        tokens: first_match(entries, {"capability": here, "tokens": tokens})["use"]["library"]
        for tokens in (1, 8, 9, 64, 65, 10_000)
    }
    assert found == {1: "xla", 8: "xla", 9: "cublaslt", 64: "cublaslt", 65: "xla", 10_000: "xla"}


@pytest.mark.slow
def test_steps_that_are_mixed_alternate_and_are_profiled(tmp_path: Path) -> None:
    part = measured(steady, tmp_path)
    assert [line["what"] for line in part["lines"]] == ["mixed", "alternating", "steady"]
    assert part["left_out"] == []
    last = part["lines"][-1]
    assert (last["graph_updates"], last["graphs_made"], last["late_compiles"]) == (0, 0, 0)
    assert all(line["ms"] > 0 for line in part["lines"])


@pytest.mark.slow
def test_a_soak_has_a_line_for_each_tenth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = measured(steady, tmp_path, soak=True, tensor_parallel=True)
    assert alone["left_out"] == ["tensor parallelism: there is one device"]
    part = measured(steady, tmp_path, soak=True)
    assert [line["case"].partition("step ")[2] for line in part["lines"]] == [
        str(step) for step in range(2, 21, 2)
    ]


# --- the profiler's trace --------------------------------------------------------------------


def plane(name: str, **lines: list[tuple[str, float]]) -> SimpleNamespace:
    return SimpleNamespace(name=name, lines=[
        SimpleNamespace(name=line.replace("_", " "), events=[
            SimpleNamespace(name=event, duration_ns=ns) for event, ns in events
        ])
        for line, events in lines.items()
    ])  # fmt: skip


def test_a_trace_has_kernels_of_streams_and_calls_of_cuda() -> None:
    found = device_trace.read_planes([
        plane("/device:GPU:0", Stream_20=[("gemm", 2000.0), ("gemm", 1000.0), ("norm", 500.0)],
              XLA_Ops=[("fusion", 9e9)]),
        plane("/host:CPU", worker=[("cuGraphLaunch", 5.0), ("cuGraphLaunch", 5.0),
                                   ("cuGraphExecKernelNodeSetParams_v2", 5.0),
                                   ("cuGraphInstantiateWithParams", 5.0), ("current thread", 1.0)]),
    ])  # fmt: skip
    assert found.kernels == {"gemm": (2, pytest.approx(3e-6)), "norm": (1, pytest.approx(5e-7))}
    assert found.device_seconds == pytest.approx(3.5e-6)
    assert found.count(device_trace.GRAPH_LAUNCH) == 2
    assert (
        found.count(device_trace.GRAPH_UPDATE) == found.count(device_trace.GRAPH_INSTANTIATION) == 1
    )
    assert list(found.slowest(1)) == ["gemm"]


def test_a_cpu_has_no_time_on_a_device() -> None:
    import jax

    run = jax.jit(lambda x: x @ x)
    x = jax.numpy.ones((8, 8))
    found = device_trace.traced(lambda: jax.block_until_ready(run(x)))
    assert found.device_seconds is None and not found.kernels
    took = clock.seconds_of(run, x, repeats=2, profiled=True)
    assert 0 < took.best <= took.median


def test_the_device_s_clock_counts_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = device_trace.DeviceTrace(
        {"kernel": device_trace.KernelRuns(4, 8e-6)}, device_trace.Counter()
    )
    monkeypatch.setattr(clock, "traced", lambda _: seen)
    took = clock.seconds_of(lambda: None, repeats=1, calls=4, profiled=True)
    assert took.best == pytest.approx(2e-6)


# --- budgets, and the page -------------------------------------------------------------------


def test_a_steady_step_without_graphs_fails_its_stage() -> None:
    line = {"case": "64 x 1000", "graph_launches": 0, "kernel_launches": 9, "device_ms": 5.0}
    with pytest.raises(RuntimeError, match=r"64 x 1000: .*no CUDA graph was launched"):
        steady.check_graphs(line)
    steady.check_graphs({**line, "graph_launches": 12})
    # A CPU has no graphs, and some versions of jax record no launch at all.
    steady.check_graphs({**line, "kernel_launches": 0})


def test_stages_share_the_time_that_is_left(tmp_path: Path) -> None:
    """Of those that can run: peers and several devices are not here."""
    settings = Settings(tmp_path, False, "no-such-python")
    able = [stage for stage in STAGES if obstacle(stage, settings) is None]
    assert not {"torch", "vllm", "soak", "tensor-parallel"} & {stage.name for stage in able}
    assert sum(stage.seconds for stage in able) <= 650, "ten minutes, and a little less for each"
    left, given = 590.0, []
    for number in range(len(STAGES)):
        if STAGES[number] in able:
            given.append(check.share(STAGES[number:], settings, left))
            left -= given[-1]
    assert left == pytest.approx(0, abs=1), "nothing is left over, and nothing runs out"
    assert min(given) > 12
    assert check.share([STAGES[1]], settings, 590) == STAGES[1].seconds * check.MOST_OF_ITS_TIME
    (tmp_path / "device.json").write_text(json.dumps({"lines": [{"count": 4}]}))
    assert obstacle(next(one for one in STAGES if one.name == "soak"), settings) is None


def test_the_order_is_from_the_canary_to_models() -> None:
    names = [stage.name for stage in STAGES]
    wanted = ["device", "canary", "numerics", "sweep", "kernels", "large-model", "steady", "soak"]
    assert [name for name in names if name in wanted] == wanted
    assert next(stage for stage in STAGES if stage.name == "canary").seconds == 20


def test_what_an_earlier_run_has_measured_comes_last(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    lines = [{"what": "x", "case": "1"}, {"what": "x", "case": "2", "failed": "no memory"}]
    kept.write_text(json.dumps({"parts": {"numerics": {"lines": lines}}}))
    for stage, order in (("numerics", [2, 3, 1]), ("features", [1, 2, 3])):
        assert list(StageResult(tmp_path / f"{stage}.json", 100, kept).in_time([1, 2, 3])) == order
    settings = Settings(tmp_path, False, "python", after=kept)
    assert ["--after", str(kept)] == command(STAGES[2], settings, 10)[-2:]


def test_fixed_addresses_are_compared_with_answers_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage before it writes them: its own engines all have the flag."""
    stage = next(one for one in STAGES if one.name == "updates-answers")
    assert stage.module == "features" and stage.arguments == ("--few",)
    names = [one.name for one in STAGES]
    assert names.index("features") < names.index(stage.name)
    flags = environment(stage, Settings(tmp_path, False, ""), {})["XLA_FLAGS"]
    assert flags == "--xla_gpu_command_buffer_update_mode=SKIP_TEMP"
    opened: list[Any] = []

    class Engine:
        def __init__(self, *_: Any, **settings: Any) -> None:
            opened.append(settings["attention_backend"])

        def __enter__(self) -> Engine:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(features, "LLM", Engine)
    monkeypatch.setattr(
        features, "answers", lambda _, __, adapter=None: [([5 + bool(adapter)], [-0.5])]
    )
    given: Any = tmp_path / "answers.json", features.FEW, "an adapter"
    first, second = features.expected(*given), features.expected(*given)
    assert opened == ["xla"]
    for here, there in zip(first, second, strict=True):
        assert features.difference(here, there) == 0


def test_the_large_model_is_dumped() -> None:
    stage = next(stage for stage in STAGES if stage.name == "large-model")
    flags = environment(stage, Settings(Path("out"), False, ""), {})["XLA_FLAGS"]
    assert "--xla_dump_to=out/hlo" in flags
    assert "--xla_gpu_dump_autotune_results_to=out/autotune.txt" in flags


def test_the_page_shows_rooflines_and_every_line() -> None:
    attention = {"case": "1 x 8", "best_us": 10.0, "moved": 1e6, "operations": 1e9}
    parts = {
        "ceilings": {"status": "done", "lines": [
            {"what": "copy", "gb_s": 3000.0}, {"what": "product bfloat16", "tflop_s": 700.0}]},
        "kernels": {"status": "done", "lines": [
            {"what": "decode attention", **attention}, {"what": "prefill attention", **attention},
            {"what": "prefill attention", "case": "x", "failed": "no such <instruction>"}]},
        "large-model": {"status": "done", "lines": [
            {"what": "decode", "model": "llama-8b", "rows": 8, "context": 1024, "queued_ms": 8.0,
             "read_bytes": 12e9}]},
    }  # fmt: skip
    text = page({"dry_run": False, "command": "python <x>", "parts": parts})
    assert text.count("<circle") == 2 and "<svg" in text
    assert "100.0 TFLOP/s" in text and "3,000 GB/s and 700 TFLOP/s" in text
    assert "<td>4.000</td><td>50%</td>" in text
    assert "no such &lt;instruction&gt;" in text and "python &lt;x&gt;" in text
    assert not re.search(r"<script|https?://(?!www\.w3\.org)", text), "nothing to fetch"
    bare = page({"dry_run": True, "command": "", "parts": {}})
    assert "No step was timed" in bare and "have no figures" in bare and "DRY RUN" in bare
