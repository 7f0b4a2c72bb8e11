"""Doctor: NVIDIA's driver, whether kernels compile and run on each GPU, and peer access between
GPUs.

A compiler or driver may crash its process, so each is tried in a separate process, whose end
becomes a finding. Must run before JAX has taken the GPUs' memory in this process.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jengine.cli.checks.finding import Finding
from jengine.cli.checks.versions import all_versions
from pallas_kernels.choice import missing_for_triton
from pallas_kernels.cuda_devices import (
    DEVICES,
    compile_problem,
    ended_with,
    ptx_version,
    run_probe,
)
from pallas_kernels.fa4.rules import CAPABILITIES, unchosen

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
# Plugin -> (our extra, oldest driver for its CUDA version).
PLUGINS = {"jax-cuda12-plugin": ("cuda12", 525), "jax-cuda13-plugin": ("cuda13", 580)}
SUBJECT = "gpus"
SMI_SECONDS = 60
NONE = (
    "no NVIDIA driver on this machine; `jengine doctor --for sm_120` tries the compiler for a GPU "
    "that is elsewhere"
)


def check() -> list[Finding]:
    """Findings on this machine's GPUs, and a verdict; a note if it has none."""
    version = driver_version()
    if version is None:
        return [Finding("note", SUBJECT, NONE)]
    found = [*driver(version, all_versions()), *kernels(tried_devices()), *peers(p2p_table())]
    return [*found, verdict(found)]


def check_for(architecture: str) -> Finding:
    """Finding on compiling kernels for a GPU such as `sm_120` or `12.0`, which need not be
    present."""
    digits = re.sub(r"\D", "", architecture)
    if not digits:
        known = ", ".join(f"sm_{one}" for one in DEVICES)
        return Finding("problem", SUBJECT, f"--for {architecture}: expected one of {known}")
    return compiles(f"sm_{digits}", int(digits))


def driver_version() -> str | None:
    """Version of NVIDIA's driver, "" if unknown; None without a driver."""
    if NVIDIA_DRIVER.exists():
        found = re.search(r"\b(\d{3}\.[\d.]+)", NVIDIA_DRIVER.read_text(errors="replace"))
        return found[1] if found else ""
    return "" if shutil.which("nvidia-smi") else None


def driver(version: str, packages: Mapping[str, str]) -> Iterator[Finding]:
    """The driver, and whether it supports the CUDA version of JAX's plugin."""
    plugins = [name for name in PLUGINS if packages.get(name)]
    if not plugins:
        text = "JAX has no CUDA plugin: pip install 'jengine[cuda12]' or 'jengine[cuda13]'"
        yield Finding("problem", SUBJECT, f"driver {version or 'unknown'}, but {text}")
    for name in plugins:
        extra, least = PLUGINS[name]
        text = f"driver {version or 'unknown'}, {name} {packages[name]}"
        if version and int(version.partition(".")[0]) < least:
            text += f": {extra} needs driver {least} or newer. Update it"
            text += ", or install 'jengine[cuda12]'" if extra == "cuda13" else ""
            yield Finding("problem", SUBJECT, text)
        else:
            yield Finding("OK", SUBJECT, text)


def tried_devices() -> list[dict[str, Any]] | str:
    """Launch a small kernel on each GPU in a separate process. Returns its report, or how it
    ended."""
    done = run_probe([], {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"})
    if done.returncode:
        return ended_with(done)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def kernels(tried: list[dict[str, Any]] | str) -> Iterator[Finding]:
    """Findings on compiling kernels for each GPU and running them on it."""
    if isinstance(tried, str):
        yield Finding("problem", SUBJECT, f"the process that tries the GPUs ended: {tried}")
        return
    if not tried:
        yield Finding("problem", SUBJECT, "there is a driver, but JAX sees no GPU")
    for device in tried:
        name = f"cuda:{device['id']} {device['kind']}"
        found = compiles(f"{name}, compute capability {device['capability'] / 10:.1f}",
                         device["capability"])  # fmt: skip
        yield found
        if found.level == "OK":
            why = device["problem"]
            text = f"{name}: a small kernel " + (f"fails: {why}" if why else "runs")
            yield Finding("problem" if why else "OK", SUBJECT, text, device)


def compiles(name: str, capability: int) -> Finding:
    """Finding on compiling a small kernel for a GPU."""
    if problem := missing_for_triton() or compile_problem(capability):
        return Finding("problem", SUBJECT, f"{name}: {problem}")
    text = f"{name}: kernels compile, to PTX {ptx_version(capability) / 10:.1f}"
    if capability in CAPABILITIES:
        why = unchosen(capability)
        text += "; prompts on " + (f"Triton: {why}" if why else "FlashAttention-4")
    return Finding("OK", SUBJECT, text, {"capability": capability})


def p2p_table() -> str | None:
    """`nvidia-smi`'s table of reads between GPUs; "" if it is not installed, None if it hangs."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return ""
    command = [smi, "topo", "-p2p", "r"]
    try:
        return subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, check=False, timeout=SMI_SECONDS
        ).stdout
    except subprocess.TimeoutExpired:
        return None


def peers(table: str | None) -> Iterator[Finding]:
    """Finding on whether GPUs can read each other's memory."""
    if table is None:
        text = f"nvidia-smi topo had not ended after {SMI_SECONDS} seconds: the driver hangs"
        yield Finding("problem", SUBJECT, text)
        return
    rows = [line.split() for line in table.splitlines() if re.match(r"\s*GPU\d+\s+\S", line)]
    states = {row[0]: row[1:] for row in rows if not row[1].startswith("GPU")}
    if len(states) < 2:
        return
    apart = sorted(name for name, row in states.items() if {*row} - {"X", "OK"})
    if apart:
        text = (
            f"{', '.join(apart)} cannot read the memory of every other GPU: collectives go through "
            "the host, which is slower. If they hang, set NCCL_P2P_DISABLE=1"
        )
        yield Finding("note", SUBJECT, text)
    else:
        yield Finding("OK", SUBJECT, f"{len(states)} GPUs read one another's memory")


def verdict(found: Iterable[Finding]) -> Finding:
    """One finding that summarises all."""
    problems = sum(one.level == "problem" for one in found)
    if problems:
        return Finding(
            "problem", SUBJECT, f"these GPUs cannot serve yet: {problems} problems above"
        )
    return Finding("OK", SUBJECT, "these GPUs can serve")
