"""The stages, most valuable first: command, requirements and time limit of each.

In: settings of a run. Out: a command and an environment per stage. Must not know what is measured.
Imports neither jax nor anything that may be missing, so that a missing package can be reported.
"""

from __future__ import annotations

import importlib.metadata
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
    "llguidance",
)  # fmt: skip
COMPILED_FOR = "compiled-for"
WITHOUT_COMMAND_BUFFERS = "--xla_gpu_enable_command_buffer="
# By default XLA updates every node of a graph whose arrays have moved since the last launch.
UPDATES = "--xla_gpu_command_buffer_update_mode"
SMALL_AND_FEW = ("--model", "qwen3-0.6b", "--few")
# What XLA made of the steps of the large model: optimized programs, and its choices of algorithms.
DUMPS = (
    "--xla_dump_to={out}/hlo --xla_dump_hlo_module_re=.*step.* --xla_dump_hlo_as_text "
    "--xla_gpu_dump_autotune_results_to={out}/autotune.txt"
)


@dataclass(frozen=True)
class Stage:
    """One stage, run in a separate process."""

    name: str
    module: str
    seconds: int
    needs: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    xla_flags: str = ""  # {out}: the folder of this run
    devices: int = 1  # that it needs
    oldest_jax: tuple[int, ...] = ()  # whose XLA has the flags
    needs_on_gpu: tuple[str, ...] = ()  # for which a dry run has something else
    peer: str = ""  # whose Python it needs


PARALLEL = ("--model", "llama-8b", "--few", "--tensor-parallel")
CONTENDER = ("--model", "llama-8b", "--engine")
SOAK = ("--model", "llama-8b", "--tensor-parallel", "--soak")
STAGES = (
    Stage("device", "device", 20, ("jax",), xla_flags=f"--xla_dump_to={{out}}/{COMPILED_FOR}"),
    Stage("canary", "canary", 20, ("jax", "numpy")),
    Stage("numerics", "numerics", 50, ("jax", "numpy")),
    Stage("features", "features", 60, ENGINE_NEEDS),
    Stage("fa4", "fa4", 60, (*ENGINE_NEEDS, "triton"), ("--model", "qwen3-0.6b"),
          needs_on_gpu=("fa4_jax", "cutlass")),
    Stage("sweep", "sweep", 75, ("jax", "numpy", "triton")),
    Stage("ceilings", "ceilings", 15, ("jax",)),
    Stage("matmuls", "matmuls", 30, ("jax", "numpy")),
    Stage("kernels", "kernels", 60, ("jax", "numpy")),
    Stage("small-model", "models", 50, ENGINE_NEEDS, ("--model", "qwen3-0.6b")),
    Stage("large-model", "models", 80, ENGINE_NEEDS, ("--model", "llama-8b"), xla_flags=DUMPS),
    Stage("steady", "steady", 50, ENGINE_NEEDS, ("--model", "llama-8b")),
    Stage("xla-matmuls", "models", 40, ENGINE_NEEDS,
          ("--model", "llama-8b", "--few", "--matmuls", "xla")),
    Stage("cublaslt-alone", "models", 40, ENGINE_NEEDS,
          ("--model", "llama-8b", "--few", "--matmuls", "cublaslt")),
    Stage("without-command-buffers", "models", 30, ENGINE_NEEDS, SMALL_AND_FEW,
          xla_flags=WITHOUT_COMMAND_BUFFERS),
    Stage("updates-answers", "features", 25, ENGINE_NEEDS, ("--few",),
          xla_flags=f"{UPDATES}=SKIP_TEMP", oldest_jax=(0, 11)),
    Stage("updates-skip-temporary", "models", 30, ENGINE_NEEDS, SMALL_AND_FEW,
          xla_flags=f"{UPDATES}=SKIP_TEMP", oldest_jax=(0, 11)),
    Stage("updates-skip-profiled", "models", 30, ENGINE_NEEDS, SMALL_AND_FEW,
          xla_flags=f"{UPDATES}=SKIP_PROFILED", oldest_jax=(0, 11)),
    Stage("torch", "torch_peer", 110, ()),
    Stage("compare", "compared", 60, ENGINE_NEEDS),
    Stage("vllm", "contender", 300, ENGINE_NEEDS, (*CONTENDER, "vllm", "--race"), peer="vllm"),
    Stage("tensor-parallel", "models", 60, ENGINE_NEEDS, PARALLEL, devices=2),
    Stage("captured-collectives", "models", 60, ENGINE_NEEDS, (*PARALLEL, "--captured"), devices=2),
    Stage("long-graphs", "models", 60, ENGINE_NEEDS, (*PARALLEL, "--long-graphs"), devices=2),
    Stage("soak", "steady", 200, ENGINE_NEEDS, SOAK, devices=2),
    Stage("captured-soak", "steady", 200, ENGINE_NEEDS, (*SOAK, "--captured"), devices=2),
)  # fmt: skip

# Instead of the others with --table: engines one after the other.
TABLE = (
    Stage("table-triton", "contender", 120, (*ENGINE_NEEDS, "triton"), (*CONTENDER, "triton")),
    Stage("table-fa4", "contender", 120, (*ENGINE_NEEDS, "triton"), (*CONTENDER, "fa4"),
          needs_on_gpu=("fa4_jax", "cutlass")),
    Stage("table-vllm", "contender", 180, ENGINE_NEEDS, (*CONTENDER, "vllm"), peer="vllm"),
    Stage("table-mlx", "contender", 180, ENGINE_NEEDS, (*CONTENDER, "mlx"), peer="mlx"),
)  # fmt: skip
# What the table needs before: the device's name and its rates.
BEFORE_TABLE = ("device", "ceilings")
PEER_PACKAGES = {"vllm": ("vllm",), "mlx": ("mlx", "mlx_lm")}


@dataclass(frozen=True)
class Settings:
    """Settings of one run of the check."""

    out: Path
    dry_run: bool
    torch_python: str
    vllm_python: str | None = None
    mlx_python: str | None = None
    after: Path | None = None

    @property
    def peers(self) -> Mapping[str, str | None]:
        """The Python of each peer, None if none was named."""
        return {"vllm": self.vllm_python, "mlx": self.mlx_python}


def obstacle(stage: Stage, settings: Settings) -> str | None:
    """Why a stage cannot run here, or None."""
    needs = stage.needs + stage.needs_on_gpu * (not settings.dry_run)
    missing = [name for name in needs if importlib.util.find_spec(name) is None]
    if missing:
        return (
            f"not installed: {', '.join(missing)}. A wheel will do: "
            f"pip install --no-index --find-links FOLDER {' '.join(missing)}"
        )
    jaxlib = tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2]))
    if stage.oldest_jax > jaxlib:
        return f"it needs jax {'.'.join(map(str, stage.oldest_jax))} or newer"
    if stage.devices > (there := devices_there(settings)):
        return f"it needs {stage.devices} devices, and there is {there}"
    if stage.peer:
        flag, python = f"--{stage.peer}-python", settings.peers[stage.peer]
        if python is None:
            return f"{flag} names no Python that has {stage.peer}"
        return packages_obstacle(flag, python, PEER_PACKAGES[stage.peer])
    if stage.module in ("torch_peer", "compared"):
        packages = ("torch", "transformers")
        return packages_obstacle("--torch-python", settings.torch_python, packages)
    return None


def devices_there(settings: Settings) -> int:
    """Device count found by the first stage; 1 if it has not run."""
    file = settings.out / "device.json"
    lines = json.loads(file.read_text("utf-8"))["lines"] if file.is_file() else []
    return next((line["count"] for line in lines if "count" in line), 1)


def packages_obstacle(flag: str, python: str, packages: tuple[str, ...]) -> str | None:
    """Why this Python cannot run a peer, or None."""
    words = (
        "import sys, importlib.util as u; print(*[n for n in sys.argv[1:] if not u.find_spec(n)])"
    )
    try:
        done = subprocess.run(  # noqa: S603 - the Python that the user named
            [python, "-c", words, *packages], capture_output=True, text=True, check=False
        )
    except OSError as error:
        return f"{flag} {python} cannot be run: {error}"
    if done.returncode:
        return f"{flag} {python} ended with status {done.returncode}: {done.stderr[-300:]}"
    missing = done.stdout.split()
    return f"{python} has no {' and no '.join(missing)}" if missing else None


def command(stage: Stage, settings: Settings, seconds: float) -> list[str]:
    """The stage's command line."""
    part = ["--part", str(part_file(stage, settings)), "--seconds", str(seconds)]
    if stage.module == "torch_peer":
        program = str(Path(__file__).parent / "torch_peer.py")
        work = settings.out / "torch-work.json"
        work.write_text(json.dumps(torch_work(dry_run=settings.dry_run)), encoding="utf-8")
        return [settings.torch_python, program, *part, "--work", str(work)]
    dry = ["--dry-run"] * settings.dry_run
    if settings.after is not None:
        dry += ["--after", str(settings.after)]
    if stage.peer:
        dry += ["--peer-python", str(settings.peers[stage.peer])]
    if stage.module == "compared":
        dry += ["--peer-python", settings.torch_python]
    module = f"jengine.bench.gpu.{stage.module}"
    return [sys.executable, "-m", module, *part, *stage.arguments, *dry]


def part_file(stage: Stage, settings: Settings) -> Path:
    """The stage's result file."""
    return settings.out / f"{stage.name}.json"


def environment(stage: Stage, settings: Settings, given: Mapping[str, str]) -> dict[str, str]:
    """The current environment plus the stage's variables."""
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
    """The repository root."""
    return Path(__file__).parents[3]


def torch_work(*, dry_run: bool) -> dict[str, object]:
    """The cases for the torch peer, as JSON."""
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
