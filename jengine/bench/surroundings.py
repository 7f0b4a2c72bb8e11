"""The commit, machine, devices and versions of a measurement, saved with every result."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from jengine.bench.machine import commit, machine, versions


def surroundings() -> dict[str, Any]:
    return {
        "commit": commit(),
        "hardware": {
            **machine(),
            "devices": sorted({device.device_kind for device in jax.devices()}),
        },
        "versions": versions(["jax", "jaxlib", "numpy"]),
    }


def shown_command(module: str, words: Sequence[str]) -> str:
    """A benchmark's command without its output file, and with paths reduced to their last
    component."""
    kept = list(words)
    if "--output-json" in kept:
        begin = kept.index("--output-json")
        del kept[begin : begin + 2]
    kept = [Path(word).name if word.startswith("/") else word for word in kept]
    return shlex.join(["python", "-m", module, *kept])
