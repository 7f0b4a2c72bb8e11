"""Compiles FlashAttention-4's kernels, and steps with them, on a machine without a GPU.

    python -m jengine.bench.gpu_proof.fa4 --out FILE.json

Needs Python 3.12, jengine[fa4], jax's CUDA plugin and triton 3.9. Registers, spills and
instructions are read from the machine code by `cuobjdump`, which triton ships. Numbers are not
checked: these kernels have no interpreter. Goes on where an earlier run with the same FILE.json,
commit and packages has ended. Writes a table beside FILE.json, with what Triton's
kernels and steps of the same sizes are in the kept proof.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import triton

from jengine.bench.attention_shapes import fa4_shapes
from jengine.bench.gpu_proof.__main__ import PACKAGES, RESULTS, versions
from jengine.bench.gpu_proof.cases import StepCase
from jengine.bench.gpu_proof.device import environment
from jengine.bench.gpu_proof.fa4_report import markdown, named
from jengine.bench.gpu_proof.steps import compiled_step, program_facts
from jengine.bench.machine import commit, machine
from pallas_kernels.fa4.kernel import Geometry, compiled
from pallas_kernels.fa4.rules import BULK_BLOCK, CAPABILITIES
from pallas_kernels.fa4.rules import PACKAGES as PINNED

# In the machine code: matmuls, bulk copies and small asynchronous ones, spills.
INSTRUCTIONS = {
    "matmuls": r"\b(?:HGMMA|UTCHMMA)\b",
    "bulk_copies": r"\bUTMA(?:LDG|STG)\b",
    "small_copies": r"\bLDGSTS\b",
    "spills": r"\b(?:STL|LDL)\b",
}
ROW = "row: "  # before a row, among what compilers print


def geometries(capability: int) -> Iterator[Geometry]:
    """The shapes on one device."""
    for one in fa4_shapes(BULK_BLOCK):
        yield Geometry(
            capability, one.group * one.kv_heads, one.kv_heads, one.head_dim, one.block_size,
            one.window, 1.0, one.dtype, one.sinks,
        )  # fmt: skip


MIXED = StepCase("llama-8b", 64, 2048, "fa4", matmuls="xla")
# Each beside the same step with Triton alone.
STEPS = tuple(
    replace(case, attention=attention)
    for case in (
        MIXED,
        replace(MIXED, decode_rows=8, prefill_tokens=8192),
        replace(MIXED, devices=4, captured=True),
        replace(MIXED, model="qwen3-8b"),
        replace(MIXED, model="gemma3-27b", layers=12, cache_tokens=100_000),
        replace(MIXED, model="gpt-oss-120b", quantization="mxfp4", layers=4, cache_tokens=100_000),
    )
    for attention in ("fa4", "triton")
)


def kernel_row(geometry: Geometry) -> dict[str, Any]:
    """Resources and instructions of one compiled kernel."""
    began = time.perf_counter()
    # The machine code is the second ELF file; the first one holds it and the code of the host.
    module = compiled(geometry, in_place=True).module
    code = module[module.index(b"\x7fELF", 1) :]
    seconds = time.perf_counter() - began
    usage, text = cuobjdump(code, "--dump-resource-usage"), cuobjdump(code, "-sass")
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if found is None:
        raise RuntimeError(f"cuobjdump reports in a way that is not known here:\n{usage}")
    return {
        **geometry._asdict(),
        "registers": int(found[1]),
        "stack_bytes": int(found[2]),
        **{name: len(re.findall(pattern, text)) for name, pattern in INSTRUCTIONS.items()},
        "module_bytes": len(module),
        "compile_s": round(seconds, 1),
    }


def cuobjdump(code: bytes, option: str) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, option, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603


def step_row(case: StepCase, dump: Path) -> dict[str, Any]:
    for listing in dump.glob("*thunk_sequence*"):  # of the step before
        listing.unlink()
    program, cache_bytes, _ = compiled_step(case)
    return {"step": str(case), **program_facts(program, dump, case, cache_bytes)}


def cases() -> Iterator[Geometry | StepCase]:
    """All kernels and steps, those of the oldest device first."""
    for capability in CAPABILITIES:
        yield from geometries(capability)
        if capability == CAPABILITIES[0]:
            yield from STEPS


def name_of(case: Geometry | StepCase) -> str:
    """A name to find a kept row by."""
    return str(case) if isinstance(case, StepCase) else named(case._asdict(), with_device=True)


def work(dump: Path, kept: Collection[str]) -> None:
    """Print a JSON object per case that is not kept, in an environment that names the dump."""
    for case in cases():
        if (name := name_of(case)) not in kept:
            is_step = isinstance(case, StepCase)
            row = step_row(case, dump) if is_step else kernel_row(case)
            print(ROW + json.dumps({"name": name, **row}), flush=True)
    print(ROW + json.dumps({"torch_imported": "torch" in sys.modules}), flush=True)


def main() -> None:
    """Run the work in a separate process, and write what it finds, row by row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dump", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    result: dict[str, Any] = {
        "bench": "gpu_proof.fa4",
        "note": "compiled on a machine without a GPU; nothing here was run or timed",
        "command": "python -m jengine.bench.gpu_proof.fa4 --out FILE.json",
        "commit": commit(),
        "hardware": machine(),
        "versions": versions((*PACKAGES, *PINNED)),
        "kernels": [],
        "steps": [],
    }
    if args.out.exists():
        result = continued(json.loads(args.out.read_text("utf-8")), result)
    if args.dump:
        return work(args.dump, {row["name"] for row in (*result["kernels"], *result["steps"])})
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "jengine.bench.gpu_proof.fa4", "--dump", folder]
        with subprocess.Popen(  # noqa: S603
            [*command, "--out", str(args.out)], env=environment(Path(folder)),
            stdout=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith(ROW):
                    result = add(result, json.loads(line.removeprefix(ROW)))
                    write(args.out, result)
    sys.exit(process.returncode)


def continued(earlier: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """An earlier run's rows, if it ran the same code with the same packages."""
    same = all(earlier[key] == now[key] for key in ("commit", "versions"))
    return earlier if same else now


def add(result: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """A row in its place."""
    if "name" not in row:
        return {**result, **row}
    where = "steps" if "step" in row else "kernels"
    return {**result, where: [*result[where], row]}


def write(out: Path, result: dict[str, Any]) -> None:
    """The result and its table."""
    out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    tritons = json.loads(RESULTS.read_text("utf-8"))
    out.with_suffix(".md").write_text(markdown(result, tritons), "utf-8")


if __name__ == "__main__":
    main()
