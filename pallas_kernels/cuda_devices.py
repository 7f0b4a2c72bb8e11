"""The NVIDIA devices that Triton kernels are compiled for, and what each needs of CUDA's packages.

In: a compute capability (90 for 9.0) and the installed packages. Out: the PTX version to write, or
why the device cannot be served. Needs neither triton nor jax. LLVM aborts the process if the PTX
version is older than the device, so everything is checked here before a kernel is compiled.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from typing import NamedTuple

# PTX version of kernels, unless the device needs a newer one or the assembler reads only older.
USUAL_PTX = 86
# Packages with jax's assembler (ptxas), newest CUDA first, and jengine's extra for each.
ASSEMBLERS = {"nvidia-cuda-nvcc": "cuda13", "nvidia-cuda-nvcc-cu12": "cuda12"}
# Module that tries a small kernel in a subprocess, and its time limit; it usually takes seconds.
PROBE = "pallas_kernels.launch.probe"
PROBE_SECONDS = 120
# The first CUDA release whose assembler reads a version of PTX.
CUDA_OF_PTX = {86: "12.7", 87: "12.8", 88: "12.9", 90: "13.0"}


class KernelError(RuntimeError):
    """A kernel cannot be compiled or run as asked."""


class CudaDevice(NamedTuple):
    """A compute capability."""

    shared_bytes: int  # that one program may use
    ptx: int  # the oldest version that supports it


DEVICES = {
    80: CudaDevice(166_912, 70),
    86: CudaDevice(101_376, 71),
    87: CudaDevice(166_912, 74),
    89: CudaDevice(101_376, 78),
    90: CudaDevice(232_448, 80),
    100: CudaDevice(232_448, 86),
    103: CudaDevice(232_448, 88),
    110: CudaDevice(232_448, 90),
    120: CudaDevice(101_376, 87),
    121: CudaDevice(101_376, 88),
}


def ptx_of_cuda(version: str) -> int:
    """The newest PTX that the assembler of a CUDA release reads, as 86 for 8.6."""
    major, minor = map(int, version.split(".")[:2])
    if major >= 13:
        return 90 + 10 * (major - 13) + minor
    # No release between 12.5 and 12.6 brought a new one.
    return 80 + minor - (minor >= 6)


def assembler() -> tuple[str, str] | None:
    """Package and version of the assembler installed with jax; None: not installed, so the
    machine's is used, if any."""
    for package in ASSEMBLERS:
        try:
            return package, metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return None


def device_problem(capability: int) -> str | None:
    """Why no kernel can be compiled for a device, and what to install; None if one can."""
    known = DEVICES.get(capability)
    if known is None:
        names = ", ".join(f"{one / 10:.1f}" for one in DEVICES)
        return f"kernels are made for compute capabilities {names}, not {capability / 10:.1f}."
    found = assembler()
    if found is None or ptx_of_cuda(found[1]) >= known.ptx:
        return None
    cuda = CUDA_OF_PTX[known.ptx]
    # CUDA 13 needs the other extra.
    package = found[0] if known.ptx < ptx_of_cuda("13.0") else next(iter(ASSEMBLERS))
    return (
        f"compute capability {capability / 10:.1f} needs CUDA {cuda} or newer, and {found[0]} "
        f"{found[1]} is installed. Install: pip install 'jengine[{ASSEMBLERS[package]}]' "
        f"'{package}>={cuda}'."
    )


def ptx_version(capability: int) -> int:
    """The version of PTX that kernels for a device are written in."""
    if problem := device_problem(capability):
        raise KernelError(problem)
    found, oldest = assembler(), DEVICES[capability].ptx
    newest = USUAL_PTX if found is None else min(USUAL_PTX, ptx_of_cuda(found[1]))
    return max(newest, oldest)


@cache
def compile_problem(capability: int) -> str | None:
    """Why a small kernel cannot be compiled for a device, or None. Takes seconds: it is tried in a
    subprocess, since some LLVM errors abort the process."""
    if problem := device_problem(capability):
        return problem
    # This process holds the GPU; under TRITON_INTERPRET nothing would be compiled.
    unset = ("TRITON_INTERPRET", "XLA_FLAGS")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    done = run_probe([str(capability)], kept | {"JAX_PLATFORMS": "cpu"})
    if done.returncode == 0:
        return None
    name = f"a small kernel for compute capability {capability / 10:.1f}"
    return f"{name} does not compile: {ended_with(done)}"


def run_probe(
    words: Sequence[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run `launch/probe.py` in a subprocess; killed after PROBE_SECONDS, which its stderr then
    says."""
    command = [sys.executable, "-m", PROBE, *words]
    process = subprocess.Popen(  # noqa: S603
        command, env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        said, error = process.communicate(timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # one that hangs in the driver does not even die
            process.wait(1)
        return subprocess.CompletedProcess(command, -signal.SIGKILL, "", (
            f"error: {PROBE}, which tries a small kernel, had not ended after {PROBE_SECONDS} "
            "seconds. A driver that hangs does this: run nvidia-smi, and restart the machine if "
            "that hangs too."
        ))  # fmt: skip
    return subprocess.CompletedProcess(command, process.returncode, said, error)


def ended_with(done: subprocess.CompletedProcess[str]) -> str:
    """The first error line of a failed process."""
    # Indented lines are of tracebacks.
    lines = [line for line in done.stderr.splitlines() if not line.startswith(" ")]
    said = [line for line in lines if "error" in line.lower()]
    return said[0] if said else f"no message, exit status {done.returncode}"
