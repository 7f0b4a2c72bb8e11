"""The share of this machine that each of several core processes gets: processors and GPUs. No jax.

In: how many cores there are, and the devices that each one needs. Out: processors to run on, and
the environment that shows a core its own GPUs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from jengine.errors import ConfigError

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
GPU_FILES = Path("/dev")
# TPUs (two generations of drivers) and AMD GPUs, of which JAX takes all for one process.
UNDIVIDED = ("accel*", "vfio/[0-9]*", "kfd")


class Share(NamedTuple):
    """CPUs (empty: all) and environment variables of one core's process."""

    cpus: list[int]
    env: dict[str, str]


def shares(cores: int, devices: int, environ: Mapping[str, str]) -> list[Share]:
    """Divide GPUs among the cores, `devices` for each, or without GPUs the CPUs."""
    gpus = [] if environ.get("JAX_PLATFORMS") == "cpu" else visible_gpus(environ)
    if not gpus:
        return [Share(cpus, {}) for cpus in processor_shares(cores)]
    if len(gpus) < cores * devices:
        raise ConfigError(
            f"data_parallel_size={cores} with {devices} devices each needs {cores * devices} GPUs, "
            f"and {len(gpus)} are visible. Lower data_parallel_size, or show more of them with "
            f"{VISIBLE_GPUS}."
        )
    # Processors are left to all: what a core computes there is little.
    return [
        Share([], {VISIBLE_GPUS: ",".join(gpus[i * devices : (i + 1) * devices])})
        for i in range(cores)
    ]


def can_divide(environ: Mapping[str, str]) -> bool:
    """Whether several processes can have a share of the devices each: processors and NVIDIA GPUs
    can be divided, while one process takes all TPUs and AMD GPUs."""
    wanted = environ.get("JAX_PLATFORMS", "")
    if wanted:
        return wanted.split(",")[0] in ("cpu", "cuda", "gpu")
    others = (file for pattern in UNDIVIDED for file in GPU_FILES.glob(pattern))
    return bool(visible_gpus(environ)) or not any(others)


def processor_shares(cores: int) -> list[list[int]]:
    """Divide this process's CPUs among the cores; empty lists if there are fewer CPUs than
    cores."""
    if not hasattr(os, "sched_getaffinity"):
        return [[]] * cores
    own = sorted(os.sched_getaffinity(0))
    if len(own) < cores:
        return [[]] * cores
    return [own[i * len(own) // cores : (i + 1) * len(own) // cores] for i in range(cores)]


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """The NVIDIA GPUs that a program started here would see."""
    given = environ.get(VISIBLE_GPUS)
    if given is not None:
        return [one.strip() for one in given.split(",") if one.strip() not in ("", "-1")]
    files = [re.fullmatch(r"nvidia(\d+)", file.name) for file in GPU_FILES.glob("nvidia*")]
    return sorted((found[1] for found in files if found), key=int)
