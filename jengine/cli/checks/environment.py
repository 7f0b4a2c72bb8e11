"""Doctor: environment variables that affect JAX and jengine, and JAX settings that the engine
overrides.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import jax

from jengine.cli.checks.finding import Finding
from sharding.jax_settings import OWN, foreign_settings

MEANING = {
    "JAX_PLATFORMS": "JAX uses these backends only",
    "XLA_FLAGS": "options of the compiler",
    "JAX_COMPILATION_CACHE_DIR": "the compile cache is here, not in jengine's default folder",
    "JAX_DEFAULT_MATMUL_PRECISION": "precision of matmuls",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "whether JAX reserves its share of GPU memory at its start",
    "XLA_CLIENT_MEM_FRACTION": "the share of GPU memory that JAX may take",
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "the share of GPU memory that JAX may take",
    "CUDA_VISIBLE_DEVICES": "only these GPUs are seen",
    "XDG_CACHE_HOME": "compiled programs, kernels and other caches are below this folder",
    "OMP_NUM_THREADS": "threads of some CPU libraries",
}
LIBRARY_PATH = "LD_LIBRARY_PATH"
# Sets three settings of `OWN` at once under a name of its own.
ALL_TRANSFERS = "jax_transfer_guard"


def check() -> list[Finding]:
    return [*findings(os.environ), *settings(foreign_settings())]


def settings(found: Mapping[str, Any]) -> list[Finding]:
    """JAX settings of this process that do not apply to the engine."""
    return [
        Finding(
            "note", "environment",
            f"{name}={value}: for your own code; the engine runs with {OWN[name][0]}",
        )
        for name, value in found.items()
    ]  # fmt: skip


def findings(environment: Mapping[str, str]) -> list[Finding]:
    """Set variables that matter."""
    found = [
        Finding("note", "environment", f"{name}={environment[name]}: {meaning}")
        for name, meaning in MEANING.items()
        if environment.get(name)
    ]
    found += [
        Finding("note", "environment", f"{name}={value}: a setting of JAX that the engine has too")
        for name, value in environment.items()
        if value and name not in MEANING and name.lower() in _reaching()
    ]
    if "cuda" in environment.get(LIBRARY_PATH, "").lower():
        text = f"{LIBRARY_PATH} names CUDA; it may hide the libraries that JAX brings. Unset it"
        found.append(Finding("note", "environment", text))
    return found or [Finding("OK", "environment", "no variable changes how the engine runs")]


def _reaching() -> set[str]:
    """JAX settings that do apply to the engine."""
    return jax.config.values.keys() - OWN.keys() - {ALL_TRANSFERS}
