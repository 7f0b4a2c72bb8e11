"""The stages: the command, needs and time limit of each, the most valuable first.

In: settings of a run. Out: a command and an environment per stage. Must not know what is measured.
Imports neither jax nor anything that may be missing, so that a missing package can be reported.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from jengine.bench.gpu.cases import AttentionCase, sizes

ENGINE_NEEDS = (
    "jax", "numpy", "flax", "msgspec", "psutil", "tqdm", "jinja2", "tokenizers", "transformers",
)  # fmt: skip
COMPILED_FOR = "compiled-for"
WITHOUT_COMMAND_BUFFERS = "--xla_gpu_enable_command_buffer="
WITHOUT_TRITON_GEMM = "--xla_gpu_enable_triton_gemm=false"


@dataclass(frozen=True)
class Stage:
    """One stage, a separate process."""

    name: str
    module: str
    seconds: int
    needs: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    xla_flags: str = ""  # {out}: the folder of this run


STAGES = (
    Stage("device", "device", 30, ("jax",), xla_flags=f"--xla_dump_to={{out}}/{COMPILED_FOR}"),
    Stage("ceilings", "ceilings", 30, ("jax",)),
    Stage("numerics", "numerics", 80, ("jax", "numpy")),
    Stage("kernels", "kernels", 60, ("jax", "numpy")),
    Stage("small-model", "models", 80, ENGINE_NEEDS, ("--model", "qwen3-0.6b")),
    Stage("large-model", "models", 110, ENGINE_NEEDS, ("--model", "llama-8b")),
    Stage(
        "without-command-buffers", "models", 50, ENGINE_NEEDS, ("--model", "qwen3-0.6b", "--few"),
        xla_flags=WITHOUT_COMMAND_BUFFERS,
    ),
    Stage("torch", "torch_peer", 110, ()),
    Stage("sweep", "sweep", 120, ("jax", "numpy", "triton")),
    Stage(
        "cublaslt-alone", "models", 60, ENGINE_NEEDS, ("--model", "llama-8b", "--few"),
        xla_flags=WITHOUT_TRITON_GEMM,
    ),
    Stage(
        "tensor-parallel", "models", 60, ENGINE_NEEDS,
        ("--model", "llama-8b", "--few", "--tensor-parallel"),
    ),
    Stage(
        "captured-collectives", "models", 60, ENGINE_NEEDS,
        ("--model", "llama-8b", "--few", "--tensor-parallel", "--captured"),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """The settings of one run of the check."""

    out: Path
    dry_run: bool
    torch_python: str


def obstacle(stage: Stage, settings: Settings) -> str | None:
    """Why a stage cannot run, or None."""
    missing = [name for name in stage.needs if importlib.util.find_spec(name) is None]
    if missing:
        return (
            f"not installed: {', '.join(missing)}. A wheel will do: "
            f"pip install --no-index --find-links FOLDER {' '.join(missing)}"
        )
    if stage.module == "torch_peer":
        return torch_obstacle(settings.torch_python)
    return None


def torch_obstacle(python: str) -> str | None:
    """Why torch cannot be measured, or None."""
    words = "import importlib.util as u; print(*[n for n in ('torch', 'transformers') if not u.find_spec(n)])"  # noqa: E501
    try:
        done = subprocess.run([python, "-c", words], capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as error:
        return f"--torch-python {python} cannot be run: {error}"
    if done.returncode:
        return f"--torch-python {python} ended with status {done.returncode}: {done.stderr[-300:]}"
    missing = done.stdout.split()
    return f"{python} has no {' and no '.join(missing)}" if missing else None


def command(stage: Stage, settings: Settings, seconds: float) -> list[str]:
    """The command to run."""
    part = ["--part", str(part_file(stage, settings)), "--seconds", str(seconds)]
    if stage.module == "torch_peer":
        program = str(Path(__file__).parent / "torch_peer.py")
        work = settings.out / "torch-work.json"
        work.write_text(json.dumps(torch_work(dry_run=settings.dry_run)), encoding="utf-8")
        return [settings.torch_python, program, *part, "--work", str(work)]
    dry = ["--dry-run"] * settings.dry_run
    module = f"jengine.bench.gpu.{stage.module}"
    return [sys.executable, "-m", module, *part, *stage.arguments, *dry]


def part_file(stage: Stage, settings: Settings) -> Path:
    """Where a stage writes."""
    return settings.out / f"{stage.name}.json"


def environment(stage: Stage, settings: Settings, given: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment with this stage's variables."""
    flags = " ".join(
        filter(None, [given.get("XLA_FLAGS", ""), stage.xla_flags.format(out=settings.out)])
    )
    mine = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "JAX_COMPILATION_CACHE_DIR": str(settings.out / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "TORCHINDUCTOR_CACHE_DIR": str(settings.out / "compiled-torch"),
        **({"XLA_FLAGS": flags} if flags else {}),
        **({"JAX_PLATFORMS": "cpu", "TRITON_INTERPRET": "1"} if settings.dry_run else {}),
    }
    # Otherwise triton would interpret the kernels on the host of the GPU.
    kept = {k: v for k, v in given.items() if k != "TRITON_INTERPRET" or settings.dry_run}
    path = os.pathsep.join(filter(None, [str(checkout()), given.get("PYTHONPATH", "")]))
    return {**kept, **mine, "PYTHONPATH": path}


def checkout() -> Path:
    """The folder that contains the packages."""
    return Path(__file__).parents[3]


def torch_work(*, dry_run: bool) -> dict[str, object]:
    """The same cases for torch, as JSON."""
    chosen = sizes(dry_run=dry_run)

    def described(case: AttentionCase) -> dict[str, object]:
        return {
            **asdict(case), "name": str(case), "layer_bytes": chosen.layer_bytes,
            "cache_bytes": case.cache_bytes, "operations": case.operations,
        }  # fmt: skip

    return {
        "attention": [described(case) for case in chosen.decode + chosen.prefill],
        "models": chosen.models,
        "decode": chosen.peer,
        "calls": chosen.calls,
        "repeats": chosen.repeats,
        "steps": chosen.steps,
    }
