"""Initialises JAX's devices, and explains failures.

Out: a ConfigError that names the setting. Must not know models or engines.
"""

from __future__ import annotations

import jax

from jengine.assembly.progress import explained_if_slow
from jengine.errors import ConfigError
from jengine.runner.memory.memory_pool import start_devices
from pallas_kernels.choice import begin_cpu, cpu_library_folder, cpu_problem

# JAX raises a bare AssertionError if JAX_PLATFORMS names a plugin that is not installed.
CANNOT_START = (RuntimeError, AssertionError)


def start_backend(share: float) -> None:
    """Initialise JAX's devices unless that is done, with a memory pool of this share of each."""
    try:
        start_devices(share)
        jax.devices()
    except CANNOT_START as error:
        raise ConfigError(backend_problem(error)) from error


def begin_kernels(wanted: str) -> None:
    """Start compiling the CPU kernels if this attention backend uses them, while the model is
    read."""
    if may_use_cpu_kernels(wanted):
        begin_cpu()


def await_kernels(wanted: str, *, shown: bool) -> None:
    """Wait for the CPU kernels; tells the user if compiling them takes long."""
    if may_use_cpu_kernels(wanted):
        with explained_if_slow(what_kernels_cost, shown):
            cpu_problem()


def may_use_cpu_kernels(wanted: str) -> bool:
    """Whether this attention backend may use the CPU kernels."""
    return wanted in ("auto", "cpu") and jax.default_backend() == "cpu"


def what_kernels_cost() -> str:
    """Message for waiting users: how long compiling kernels takes."""
    return (
        "jengine: compiling the CPU kernels for this processor, which is done once. They are kept "
        f"in {cpu_library_folder()}."
    )


def backend_problem(error: Exception) -> str:
    """Error message for a JAX backend that fails to start: the requested platform, and what to
    do."""
    wanted = jax.config.jax_platforms  # pyrefly: ignore[missing-attribute]
    said = " ".join(str(error).split()) or f"a bare {type(error).__name__}"
    if not wanted:
        return f"JAX cannot start a device: {said}. `jengine doctor` checks drivers and plugins."
    advice = (
        "the NVIDIA driver (nvidia-smi) and the plugin (pip install 'jax[cuda12]')"
        if wanted in ("cuda", "gpu")
        else "its driver and its JAX plugin"
    )
    return (
        f"JAX cannot start a device: JAX_PLATFORMS={wanted} allows no other platform, and JAX "
        f"answers with: {said}. Unset JAX_PLATFORMS or set it to cpu; if this machine has such a "
        f"device, check {advice}."
    )
