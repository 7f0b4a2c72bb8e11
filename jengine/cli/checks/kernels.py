"""Doctor: whether the CPU kernels run. Compiles them, which takes some seconds once."""

from __future__ import annotations

import time

import jax

from jengine.assembly.backend import start_backend
from jengine.assembly.settings.args import EngineArgs
from jengine.cli.checks.finding import Finding
from jengine.errors import ConfigError
from pallas_kernels.choice import cpu_compiler, cpu_instructions, cpu_problem

# Loading a compiled library takes less, in seconds.
COMPILED = 1.0


def check() -> list[Finding]:
    """One finding if JAX runs on a CPU, else none."""
    try:
        start_backend(EngineArgs.gpu_memory_utilization)
    except ConfigError:  # reported by the devices check
        return []
    if jax.default_backend() != "cpu":
        return []
    began = time.monotonic()
    problem = cpu_problem()
    return [described(problem, time.monotonic() - began)]


def described(problem: str | None, seconds: float) -> Finding:
    """Compiler and instruction set of the CPU kernels, or that XLA is used without them."""
    if problem is None:
        how = f"compiled in {seconds:.0f} s" if seconds > COMPILED else "compiled earlier"
        return Finding("OK", "kernels", f"matmuls and attention run on kernels for this CPU's "
                       f"{cpu_instructions()}, {how} by {cpu_compiler()}")  # fmt: skip
    return Finding("note", "kernels", f"matmuls and attention run on XLA, half as fast: {problem}")
