"""What a figure depends on beside the code: commit, machine, versions. Kept with every result."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
from pathlib import Path
from typing import Any

import jax

from jengine import __version__


def surroundings() -> dict[str, Any]:
    """Commit, hardware and versions."""
    return {
        "version": __version__,
        "commit": commit(),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "devices": sorted({device.device_kind for device in jax.devices()}),
        "python": platform.python_version(),
        "jax": jax.__version__,
    }


def commit() -> str | None:
    """The commit that runs, where this is a checkout; with a + if files have changed since."""
    found = git("rev-parse", "--short", "HEAD")
    return found and found + "+" * bool(git("status", "--porcelain", "--untracked-files=no"))


def git(*words: str) -> str | None:
    """What git says about the folder this file lies in."""
    command = ["git", "-C", str(Path(__file__).parent), *words]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError:  # there is no git
        return None
    return found.stdout.strip() or None


def processor() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def peak_bytes() -> int:
    """The most memory that this process has held so far."""
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
