"""The commit, host and package versions of a measurement, without initialising a device.

Out: plain data that is saved with every result. Must not import jax.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from jengine import __version__


def client_surroundings() -> dict[str, Any]:
    """Commit, hardware and versions of a process that uses no device."""
    return {
        "commit": commit(),
        "hardware": {**machine(), "devices": []},
        "versions": versions(["numpy"]),
    }


def versions(packages: Iterable[str]) -> dict[str, str]:
    return {
        "jengine": __version__,
        "python": platform.python_version(),
        **{package: importlib.metadata.version(package) for package in packages},
    }


def machine() -> dict[str, Any]:
    """Description of the host's hardware."""
    return {
        "processor": processor(),
        "cores": cores(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
    }


def hardware_of(result: dict[str, Any]) -> str:
    """Hardware of a saved result as text."""
    found = result["hardware"]
    accelerators = [device for device in found["devices"] if device != "cpu"]
    cores = f"{found['cores']} core{'s' * (found['cores'] != 1)}"
    return ", ".join([*accelerators, f"{cores} of {found['processor']}"])


def cores() -> int | None:
    """CPU cores available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def commit() -> str | None:
    """The running commit of a checkout, with a + if files have changed since.

    Changed results and texts do not count: they do not affect the next measurement.
    """
    found = git("rev-parse", "--short", "HEAD")
    here = ("--", ":(top)", ":(top,exclude)jengine/bench/results", ":(top,exclude)*.md")
    return found and found + "+" * bool(git("status", "--porcelain", "--untracked-files=no", *here))


def git(*words: str) -> str | None:
    """Output of git in this file's folder; None if it fails."""
    command = ["git", "-C", str(Path(__file__).parent), *words]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError:  # there is no git
        return None
    return found.stdout.strip() or None


def processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def peak_bytes() -> int:
    """Peak RSS of this process."""
    status = Path("/proc/self/status")
    if status.is_file():
        # Not ru_maxrss, which starts at what the parent process held when it started this one.
        held = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(encoding="utf-8"), re.MULTILINE)
        if held is not None:
            return int(held[1]) * 1024
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
