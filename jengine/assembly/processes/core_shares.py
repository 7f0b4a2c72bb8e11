"""Divides this machine's CPUs and GPUs among core processes. No jax.

In: the number of cores, and the devices that each needs. Out: CPUs to run on, and environment
variables that limit the visible GPUs.
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
# Device files of TPUs (two driver generations) and AMD GPUs, all of which JAX takes for one
# process.
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
    # CPUs are not divided: with GPUs a core needs few.
    return [
        Share([], {VISIBLE_GPUS: ",".join(gpus[i * devices : (i + 1) * devices])})
        for i in range(cores)
    ]


def can_divide(environ: Mapping[str, str]) -> bool:
    """Whether several processes can share the devices: CPUs and NVIDIA GPUs can be divided, while
    JAX takes all TPUs or AMD GPUs for one process."""
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
    """The NVIDIA GPUs visible to a child process."""
    given = environ.get(VISIBLE_GPUS)
    if given is not None:
        return [one.strip() for one in given.split(",") if one.strip() not in ("", "-1")]
    files = [re.fullmatch(r"nvidia(\d+)", file.name) for file in GPU_FILES.glob("nvidia*")]
    return sorted((found[1] for found in files if found), key=int)
