"""Whether the CPU's own kernels can run: they are compiled here, which takes some seconds once."""

from __future__ import annotations

import jax

from jengine.assembly.args import EngineArgs
from jengine.assembly.backend import start_backend
from jengine.cli.checks.finding import Finding
from jengine.errors import ConfigError
from pallas_kernels.choice import cpu_problem


def check() -> list[Finding]:
    """One finding where JAX runs on a CPU, else none."""
    try:
        start_backend(EngineArgs.gpu_memory_utilization)
    except ConfigError:  # the devices' own check says why
        return []
    return [described(cpu_problem())] if jax.default_backend() == "cpu" else []


def described(problem: str | None) -> Finding:
    """What XLA has to do where the kernels cannot run."""
    if problem is None:
        return Finding("OK", "kernels", "matmuls and attention run on kernels for this CPU")
    return Finding("note", "kernels", f"matmuls and attention run on XLA, half as fast: {problem}")
