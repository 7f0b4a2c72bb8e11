"""Looks up the implementation of an operation by name.

Tables map names to functions, or to "module:function" where the module needs an optional package.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
from jax import Array

from pallas_kernels.cuda_devices import compile_problem
from pallas_kernels.fa4.rules import capability_of, device_problem, missing, unchosen

LARGEST_HEAD = 256
# Implementations of paged attention with ALiBi slopes and relative position biases; XLA replaces
# others for models with either.
SLOPED = frozenset({"xla"})
# The first devices with bfloat16 and asynchronous copies to shared memory.
OLDEST_CAPABILITY = 8.0


def choose(
    operation: str, implementation: str | None, table: Mapping[str, Callable[..., Any] | str]
) -> Callable[..., Any]:
    """Return the named implementation, or XLA's for None. Raises ValueError if it is not
    available."""
    found = table.get("xla" if implementation is None else implementation)
    if found is None:
        raise ValueError(
            f"{operation}(implementation={implementation!r}): not available here. "
            f"Available: {', '.join(sorted(table))}; None picks one."
        )
    if not isinstance(found, str):
        return found
    if problem := PROBLEMS.get(str(implementation), lambda: None)():
        raise ValueError(f"{operation}(implementation={implementation!r}): {problem}")
    module, _, function = found.partition(":")
    return getattr(importlib.import_module(module), function)


def by_distance(
    implementation: str | None, slopes: Array | None, biases: Array | None
) -> tuple[str | None, dict[str, Array]]:
    """Return (implementation, options) for optional ALiBi slopes and relative position biases: XLA
    replaces an implementation that supports neither."""
    given = {"slopes": slopes, "biases": biases}
    options = {name: array for name, array in given.items() if array is not None}
    return implementation if not options or implementation in SLOPED else "xla", options


def missing_for_triton() -> str | None:
    """Return what to install to compile or interpret Triton kernels, or None if nothing is
    missing."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed. Install jengine[cuda12] or jengine[cuda13]."
    return None


def missing_for_fa4() -> str | None:
    """Return what to install for FlashAttention-4, or None. Needs Triton too, for the calls that
    FlashAttention-4's kernels refuse."""
    return missing_for_triton() or missing()


def fa4_problem(platform: str, head_dims: Iterable[int]) -> str | None:
    """Why FlashAttention-4's kernels cannot run here beside Triton's, or None."""
    if problem := triton_problem(platform, head_dims) or missing():
        return problem
    return device_problem(jax.devices()[0])


def fa4_unchosen(platform: str, head_dims: Iterable[int]) -> str | None:
    """Why `auto` does not choose FlashAttention-4's kernels here, or None."""
    return fa4_problem(platform, head_dims) or unchosen(capability_of(jax.devices()[0]))


def register_fa4() -> None:
    """Register FlashAttention-4's FFI targets, which programs loaded from a compile cache need
    too."""
    importlib.import_module("pallas_kernels.fa4.call").register_ffi()


def begin_cpu() -> None:
    """Start compiling the CPU kernels in the background, unless they are compiled already."""
    importlib.import_module("pallas_kernels.cpu.background").begin()


def compiled_cpu_library() -> Path | None:
    """Path of the loaded CPU kernel library if it was compiled after the installation, or None."""
    library = importlib.import_module("pallas_kernels.cpu.library")
    return None if library.is_prebuilt() else library.loaded_file()


def cpu_library_folder() -> Path:
    """Cache folder of CPU kernel libraries. Private to this user, because its files are
    executed."""
    return importlib.import_module("pallas_kernels.cpu.build").private_folder()


def cpu_compiler() -> str:
    """Description of what built the loaded CPU kernels."""
    if importlib.import_module("pallas_kernels.cpu.library").is_prebuilt():
        return "the build of this wheel"
    return importlib.import_module("pallas_kernels.cpu.compiler").described_compiler()


def cpu_instructions() -> str:
    """The instruction set that the CPU kernels in use were compiled for."""
    return importlib.import_module("pallas_kernels.cpu.library").instruction_set()


def cpu_problem() -> str | None:
    """Why the CPU kernels cannot run here, or None. Blocks until they are compiled."""
    return importlib.import_module("pallas_kernels.cpu.library").problem()


# Per implementation: why it cannot be used here, or None.
PROBLEMS: Mapping[str, Callable[[], str | None]] = {
    "triton": missing_for_triton,
    "cpu": cpu_problem,
    "fa4": missing_for_fa4,
}


def triton_problem(platform: str, head_dims: Iterable[int]) -> str | None:
    """Why Triton kernels cannot run on this platform with these head sizes, or None."""
    if missing := missing_for_triton():
        return missing
    if platform == "cpu":
        launch = importlib.import_module("pallas_kernels.launch")
        if launch.interpreting():
            return None
        return "the kernels need an NVIDIA GPU, and JAX sees CPUs only."
    device = jax.devices()[0]
    capability = getattr(device, "compute_capability", None)
    if "cuda" not in device.client.platform_version.lower():
        return f"the kernels need an NVIDIA GPU; this is {device.device_kind}."
    if float(capability or 0) < OLDEST_CAPABILITY:
        return (
            f"the kernels need compute capability {OLDEST_CAPABILITY} or newer; "
            f"{device.device_kind} has {capability}."
        )
    return too_large(head_dims)


def too_large(head_dims: Iterable[int]) -> str | None:
    """Why Triton kernels do not support one of these head sizes, or None."""
    found = next((head_dim for head_dim in head_dims if head_dim > LARGEST_HEAD), None)
    return (
        None
        if found is None
        else (f"the kernels take head dimensions up to {LARGEST_HEAD}, not {found}.")
    )


def unserved_device(platform: str) -> str | None:
    """Return why kernels cannot be compiled here for one of this machine's GPUs, or None."""
    if platform == "cpu" or missing_for_triton():
        return None
    for device in jax.local_devices():
        capability = float(getattr(device, "compute_capability", None) or 0)
        nvidia = "cuda" in device.client.platform_version.lower()
        if nvidia and capability >= OLDEST_CAPABILITY:
            problem = compile_problem(round(10 * capability))
            if problem is not None:
                return f"{device.device_kind}: {problem}"
    return None
