"""Stage: device, versions and commit of this run."""

from __future__ import annotations

import argparse
import importlib.metadata
import shutil
import subprocess

import jax

from jengine.assembly.settings.args import EngineArgs
from jengine.bench.gpu.part import StageResult, run_stage
from jengine.bench.gpu.stages import COMPILED_FOR
from jengine.bench.surroundings import surroundings
from jengine.runner.memory.memory_pool import start_devices

PACKAGES = ("jax-triton", "triton", "flax", "transformers", "torch")
TARGET = "*gpu_target_config.pbtxt"
QUESTION = "name,driver_version,power.limit,clocks.max.sm,clocks.max.mem,memory.total"


def measure(part: StageResult, args: argparse.Namespace) -> None:
    start_devices(EngineArgs.gpu_memory_utilization)  # the pool that an engine gets by default
    device = jax.devices()[0]
    jax.block_until_ready(jax.jit(lambda x: x + 1)(0))  # makes XLA describe the device, see below
    installed = {dist.metadata["Name"]: dist.version for dist in importlib.metadata.distributions()}
    around = surroundings()
    around["versions"] |= {name: installed[name] for name in PACKAGES if name in installed}
    part.add(
        what="device",
        platform=device.platform,
        kind=device.device_kind,
        count=len(jax.devices()),
        capability=getattr(device, "compute_capability", None),
        memory_gb=round((device.memory_stats() or {}).get("bytes_limit", 0) / 1e9, 1),
        driver=driver(),
        # The target description that XLA needs to compile for this device without one.
        target_config=[
            file.name for file in sorted((args.part.parent / COMPILED_FOR).glob(TARGET))
        ],
        **around,
    )


def driver() -> str | None:
    """The driver's report of the device, including clocks and power limit."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    words = [program, f"--query-gpu={QUESTION}", "--format=csv,noheader"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip() or done.stderr.strip()


if __name__ == "__main__":
    run_stage(measure)
