"""The proof without a GPU: what it reads from compilers, what it calls worse, and the proof itself.

The proof needs the extra `gpuproof` and takes minutes; CI runs it in an environment of its own.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from jengine.bench.attention_shapes import attention_shapes
from jengine.bench.gpu_proof import assembly
from jengine.bench.gpu_proof.__main__ import with_kept
from jengine.bench.gpu_proof.cases import (
    COMMON,
    MODELS,
    StepCase,
    coded_cases,
    expert_cases,
    is_compiled,
    latent_cases,
    recurrent_cases,
    sample_cases,
    step_cases,
)
from jengine.bench.gpu_proof.device import environment
from jengine.bench.gpu_proof.from_host import copied_from_host, host_facts
from jengine.bench.gpu_proof.quantized import plain_weights
from jengine.bench.gpu_proof.report import coded_pairs, coded_problems, markdown, worse
from pallas_kernels.cuda_devices import DEVICES

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "jengine" / "bench" / "results" / "gpu-proof.json"
HAS_TRITON = importlib.util.find_spec("triton") is not None
HAS_PLUGIN = any(
    importlib.util.find_spec(f"jax_cuda{version}_plugin") is not None for version in (12, 13)
)
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")
needs_plugin = pytest.mark.skipif(
    not (HAS_TRITON and HAS_PLUGIN),
    reason="triton and jax's CUDA plugin are not installed: pip install 'jengine[gpuproof]'",
)
LISTING = """\
000: kCommandBuffer [source | sink]
    001: kCustomKernel [source       | next=002 (1)] loop_slice_fusion grid: [1, 1, 1]
    002: kCustomCall   [prev=001 (1) | next=003 (1)] kCustomCall
    003: kCustomKernel [prev=002 (1) | sink] gemm grid: [4, 1, 1]
001: kCopy [source | sink] kCopy
002: kAllReduce [source | sink] all-reduce.1
003: kCommandBuffer [source | sink]
    004: kCustomKernel  [source       | sink] gemm grid: [4, 1, 1]
"""


def test_the_last_line_says_what_and_where() -> None:
    """Of a run that has nothing to compile."""
    words = ["--parts", "steps", "--only", "no such step"]
    done = subprocess.run(
        [sys.executable, "-m", "jengine.bench.gpu_proof", *words],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["command"].endswith("--parts steps --only 'no such step'")
    assert {"commit", "processor", "cores", "jax"} <= {*told, *told["hardware"], *told["versions"]}
    assert told["steps"] == told["kernels"] == 0


def test_plain_copies_of_weights_of_few_bits_are_found() -> None:
    """Those in memory: not what a fusion has inside, and no activations."""
    program = """HloModule step

%fused_computation (p: u8[2048,14336]) -> bf16[4096,14336] {
  %p = u8[2048,14336]{1,0} parameter(0)
  ROOT %inside = bf16[4096,14336]{1,0} convert(%p)
}

ENTRY %main (p.1: u8[2048,14336]) -> bf16[64,14336] {
  %p.1 = u8[2048,14336]{1,0} parameter(0)
  %copy = bf16[4096,14336]{1,0} fusion(%p.1), kind=kLoop, calls=%fused_computation
  ROOT %made = bf16[64,14336]{1,0} custom-call(%copy)
}
"""
    case = StepCase("llama-8b", 64, 0, "triton", quantization="int4")
    assert plain_weights(program, case) == 1
    assert plain_weights(program, StepCase("llama-8b", 64, 0, "triton")) == 0
    row = {"step": str(case), "kernel_calls": 1, "plain_weights": 1, "command_buffers": 1,
           "outside_command_buffers": 0, "collectives_outside": 0, "cache_copies": 0,
           "rematerialized": 0, "cache_aliased": True, "moves_a_layer": 0, "temporary_mb": 1,
           "launches": 1}  # fmt: skip
    assert worse({"kernels": [], "steps": [row]}, {"kernels": [], "steps": []}) == [
        f"{case}: 1 plain copies of weights of few bits"
    ]


def test_copies_from_the_host_and_the_kernels_beside_them() -> None:
    program = (
        "%copy-start.1 = (bf16[4096,14336]{1,0}, bf16[4096,14336]{1,0:S(5)}, u32[]) "
        "copy-start(%w), metadata={}\n"
        "%copy-start.2 = (f8e4m3fn[8,4]{1,0}, f8e4m3fn[8,4]{1,0:S(5)}, u32[]) copy-start(%s)\n"
        "%copy-start.3 = (f32[8]{0}, f32[8]{0}, u32[]) copy-start(%of.the.device)\n"
    )
    assert copied_from_host(program) == 2 * 4096 * 14336 + 8 * 4
    thunks = """\
002: kAsyncStart    [source | next=000 (6)] stream=computation_stream[0], async_id=2
    001: kCopy [source | sink] (no description)
003: kAsyncDone     [source | sink] async_id=2
005: kAsyncStart    [source | next=000 (6)] stream=computation_stream[0], async_id=5
    004: kCopy [source | sink] (no description)
000: kCommandBuffer [prev=004 (5) | next=020 (3)]
    006: kCustomKernel [source | sink] gemm grid: [14336, 1, 1]
007: kAsyncDone     [source | sink] async_id=5
""".splitlines()
    found = host_facts(program, thunks)
    assert found == {"host_gb": 0.117, "host_copies": 2, "late_copies": 1}


@pytest.mark.parametrize(("name", "value"), [("late_copies", 8), ("host_gb", 14.1)])
def test_layers_are_copied_once_and_beside_kernels(
    result: dict[str, Any], name: str, value: float
) -> None:
    step = "llama-8b, 64 rows, triton, 16 GiB on the host"
    (row,) = (row for row in result["steps"] if row["step"] == step)
    earlier = {"kernels": [], "steps": []}
    assert not worse({"kernels": [], "steps": [row]}, earlier)
    (problem,) = worse({"kernels": [], "steps": [{**row, name: value}]}, earlier)
    assert step in problem and str(value) in problem


@pytest.fixture
def result() -> dict[str, Any]:
    return json.loads(RESULTS.read_text("utf-8"))


def test_the_committed_results_are_good(result: dict[str, Any]) -> None:
    assert worse(result, result) == []
    assert {row["step"] for row in result["steps"]} == {str(case) for case in step_cases()}
    kinds = (
        attention_shapes, latent_cases, recurrent_cases, sample_cases, expert_cases, coded_cases
    )  # fmt: skip
    cases = {str(case) for kind in kinds for case in kind()}
    assert {row["case"] for row in result["kernels"]} == cases
    assert cases > COMMON
    for capability in DEVICES:
        of_device = {row["case"] for row in result["kernels"] if row["capability"] == capability}
        without_kernels = {str(case) for case in coded_cases() if case.float8}
        wanted = {case for case in cases if is_compiled(case, capability)}
        assert of_device | without_kernels == wanted | without_kernels
    assert set(MODELS) == {"qwen3-0.6b", "llama-8b"}


@pytest.mark.parametrize(
    ("part", "name", "value", "said"),
    [
        ("kernels", "spilled_bytes", 8, "spills 8 bytes"),
        ("steps", "command_buffers", 2, "command_buffers is 2, at most 1"),
        ("steps", "command_buffers", 0, "no launch is in a command buffer"),
        ("steps", "outside_command_buffers", 1, "outside_command_buffers is 1, at most 0"),
        ("steps", "cache_copies", 1, "cache_copies is 1, expected 0"),
        ("steps", "cache_aliased", False, "cache_aliased is False"),
        ("steps", "rematerialized", 3, "rematerialized is 3"),
        ("steps", "moves_a_layer", 2, "moves_a_layer is 2, expected 0"),
        ("steps", "launches", 10_000, "launches is 10000, and was"),
        ("steps", "temporary_mb", 1e3, "temporary_mb is 1000.0, and was"),
    ],
)
def test_what_gets_worse_is_named(
    result: dict[str, Any], part: str, name: str, value: Any, said: str
) -> None:
    changed = copy.deepcopy(result)
    changed[part][0][name] = value
    problems = worse(changed, result)
    assert len(problems) == 1
    assert said in problems[0]
    assert str(changed[part][0].get("step", changed[part][0].get("case"))) in problems[0]


def test_a_new_step_may_not_have_many_temporaries(result: dict[str, Any]) -> None:
    row = {**result["steps"][0], "temporary_mb": 2001.0}
    problems = worse({"kernels": [], "steps": [row]}, {"kernels": [], "steps": []})
    assert problems == [f"{row['step']}: 2001.0 MB of temporaries, of at most 2000"]


@pytest.mark.parametrize(
    ("kernel", "capability", "name", "value", "said"),
    [
        ("decode_parts", 90, "single_buffered_loops", 1, "waits in a loop for the loads"),
        ("prefill_tiles", 90, "asynchronous_loops", 0, "waits in a loop for the loads"),
        ("decode_parts", 90, "unordered_releases", 1, "without a barrier"),
        ("prefill_tiles", 90, "wgmma", 0, "has no wgmma"),
        ("prefill_tiles", 100, "tcgen05", 0, "has no tcgen05"),
        ("prefill_tiles", 120, "spilled_bytes", 176, "spills 176 bytes"),
    ],
)
def test_what_assembly_must_hold(
    result: dict[str, Any], kernel: str, capability: int, name: str, value: int, said: str
) -> None:
    changed = copy.deepcopy(result)
    rows = (row for row in changed["kernels"] if row["capability"] == capability)
    row = next(row for row in rows if row["kernel"] == kernel)
    row[name] = value
    (problem,) = worse(changed, result)
    assert said in problem
    assert f"{kernel} for {row['case']} on sm_{capability}" in problem


def test_collectives_may_end_command_buffers(result: dict[str, Any]) -> None:
    row = next(row for row in result["steps"] if row["collectives_outside"])
    assert row["command_buffers"] <= row["collectives_outside"] + 1
    parts_without_graph = row["collectives_outside"] + 1 - row["command_buffers"]
    for name, value in (("command_buffers", row["collectives_outside"] + 2),
                        ("outside_command_buffers", 5 * parts_without_graph + 1)):  # fmt: skip
        problem, *_ = worse({"kernels": [], "steps": [{**row, name: value}]}, result)
        assert f"{name} is {value}, at most" in problem


def test_what_is_not_compiled_again_is_kept(result: dict[str, Any]) -> None:
    first, *others = result["steps"]
    renamed = {**first, "step": "a case that is no more"}
    earlier = {**result, "steps": [*others, renamed], "commit": "earlier"}
    again = {**others[0], "launches": 1}
    kept = with_kept({**result, "kernels": [], "steps": [again, first]}, earlier)
    assert kept["kernels"] == result["kernels"] and kept["kept_from"] == "earlier"
    one = {**result["kernels"][0], "registers": 1}
    kept_but_one = with_kept({**result, "kernels": [one]}, earlier)["kernels"]
    assert kept_but_one[-1] == one and len(kept_but_one) <= len(result["kernels"])
    assert kept["steps"] == [first, again, *others[1:]]
    with pytest.raises(SystemExit, match="Compile everything again"):
        with_kept({**result, "versions": {"jax": "0.1"}}, earlier)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("narrow_loads", 16, "has 16 narrow loads"),
        ("wide_copies", 0, "0 copies of 16 bytes"),
        ("tokens", 16, "reads 16 tokens a turn, of plain numbers 64"),
        ("barriers", 20, "has 20 barriers a turn"),
    ],
)
def test_codes_may_not_be_read_more_slowly(
    result: dict[str, Any], name: str, value: int, said: str
) -> None:
    row, plain = next(
        pair for pair in coded_pairs(result["kernels"]) if "dim 128" in pair[0]["case"]
    )
    assert not list(coded_problems(row, plain))
    problem, *_ = coded_problems({**row, name: value}, plain)
    assert said in problem


def test_launches_have_a_bound(result: dict[str, Any]) -> None:
    changed = copy.deepcopy(result)
    row = next(row for row in changed["steps"] if row["step"] == "llama-8b, 64 rows, triton")
    row["launches"] = 341
    assert "341 launches, at most 340 are allowed" in worse(changed, changed)[0]
    row["launches"], long = 340, next(one for one in changed["steps"] if "8192" in one["step"])
    long["temporary_mb"] = 871.0
    assert "871.0 MB of temporaries, of at most 870" in worse(changed, changed)[0]


OUTER_LOOP = """
$L__BB0_1:
	ld.global.b32 {{ %r1 }}, [ %rd1 ];
$L__BB0_2:
	cp.async.cg.shared.global [ %r2 ], [ %rd2 ], 0x10;
	cp.async.wait_group {wait};
	wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {{ %r3 }};
	@%p1 bra $L__BB0_2;
	cp.async.wait_group 0;
	st.global.b32 [ %rd3 ], %r4;
{barrier}
	@%p2 atom.global.gpu.acq_rel.add.u32 %r5, [ %rd4 ], %r6;
	bra.uni $L__BB0_1;
"""


def test_assembly_is_read() -> None:
    good = assembly.facts(OUTER_LOOP.format(wait=3, barrier="\tbar.sync 0;"))
    assert good == {
        "wgmma": 1, "tcgen05": 0, "asynchronous_loops": 1, "single_buffered_loops": 0,
        "unordered_releases": 0, "narrow_loads": 0, "wide_copies": 1, "barriers": 0,
    }  # fmt: skip
    bad = assembly.facts(OUTER_LOOP.format(wait=0, barrier=""))
    assert (bad["single_buffered_loops"], bad["unordered_releases"]) == (1, 1)


def test_tables_hold_every_step_and_device(result: dict[str, Any]) -> None:
    text = markdown(result)
    assert all(f"| {case} |" in text for case in step_cases())
    assert " | ".join(f"sm_{capability}" for capability in DEVICES) in text
    assert "not" in text.splitlines()[0] and "timed" in text.splitlines()[0]


@needs_triton
def test_thunks_are_counted(tmp_path: Path) -> None:
    from jengine.bench.gpu_proof.steps import thunks

    name = "module_1.jit_step.thunk_sequence_after_thunk_passes.txt"
    (tmp_path / name).write_text(LISTING)
    found = thunks(tmp_path)
    assert (found.launches.total(), found.buffers, found.outside, found.moves) == (6, 2, 1, 1)
    assert found.launches["kCustomKernel"] == 3
    assert found.collectives_outside == 1


def test_copies_are_found() -> None:
    from jengine.bench.gpu_proof.steps import copied_bytes

    text = """
      %copy.1 = bf16[2,10]{1,0} copy(%x)
      %y = f32[4]{0} add(%a, %b)
      %copy-start = (s8[100]{0}, s8[100]{0}, u32[]) copy-start(%z)
    """
    assert sorted(copied_bytes(text)) == [40, 100]


def worker(module: str, *arguments: str) -> Any:
    command = [sys.executable, "-m", f"jengine.bench.gpu_proof.{module}", *arguments]
    environment = {"PATH": "/usr/bin:/bin", "JAX_PLATFORMS": "cpu", "HOME": str(Path.home())}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_lowest_jax_that_may_be_installed_is_a_proved_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    proved = [one.partition(";")[0] for one in extras["gpuproof"] if one.startswith("jax==")]
    lowest = f">={min(one.removeprefix('jax==').strip() for one in proved)}"
    for name, needed in {"jax": project["dependencies"], "jax[cuda12]": extras["cuda12"],
                         "jax[cuda13]": extras["cuda13"]}.items():  # fmt: skip
        assert name + lowest in needed


@needs_triton
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kernels_compile_for_a_gpu(result: dict[str, Any]) -> None:
    """A part of the proof that needs nothing but triton."""
    rows = worker("kernels", "90", "--only", "float16 dim")
    assert {row["kernel"] for row in rows} >= {"decode_parts", "prefill_tiles"}
    assert worse({"kernels": rows, "steps": []}, result) == []


@needs_triton
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("capability", [90, 100])
def test_codes_are_read_as_plain_numbers_are(result: dict[str, Any], capability: int) -> None:
    case = "dim 128 group 4 block 16"
    rows = worker("kernels", str(capability), "--every", "--only", case)
    assert len(list(coded_pairs(rows))) == 4  # decodes and prompts, of int8 and FP8
    assert worse({"kernels": rows, "steps": []}, result) == []


@needs_triton
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("capability", [100, 120])
def test_no_kernel_spills_in_cases_that_the_results_leave_out(capability: int) -> None:
    cases = "bfloat16 latent", "2048 x 4096 x 6144"
    rows = worker("kernels", str(capability), "--every", "--only", *cases)
    assert {"latent_parts", "multiply_coded"} <= {row["kernel"] for row in rows}
    for row in rows:
        assert not row["spilled_bytes"], row


@needs_plugin
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_step_compiles_with_this_jax(result: dict[str, Any], tmp_path: Path) -> None:
    """Through jax-triton where it is installed and works with this jax, else without it: to as many
    launches, in one graph."""
    done = subprocess.run(
        [sys.executable, "-m", "jengine.bench.gpu_proof.steps", "0", str(tmp_path)],
        capture_output=True, text=True, check=False, env=environment(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    row = json.loads(done.stdout.splitlines()[-1])
    assert row["kernel_calls"] > 0
    assert worse({"kernels": [], "steps": [row]}, result) == []
    if importlib.util.find_spec("jax_triton") is not None:
        problem = jax_triton_problem(environment(tmp_path))
        said = f"kernels are launched without it: {problem}" in done.stderr
        assert said == (problem is not None), done.stderr[-3000:]


def jax_triton_problem(environment: dict[str, str]) -> str | None:
    """Asked in a process like the step's: in this one kernels may be interpreted."""
    asked = "from pallas_kernels.launch.bridge import jax_triton_problem as problem\n"
    command = [sys.executable, "-c", f"import json\n{asked}print(json.dumps(problem(90)))"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


@needs_plugin
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nothing_got_worse() -> None:
    command = [sys.executable, "-m", "jengine.bench.gpu_proof", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
