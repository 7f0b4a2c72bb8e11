"""The commit, machine, devices and versions of a measurement, kept with every result."""

from __future__ import annotations

from typing import Any

import jax

from jengine.bench.machine import commit, machine, versions


def surroundings() -> dict[str, Any]:
    """Commit, hardware and versions."""
    return {
        "commit": commit(),
        "hardware": {
            **machine(),
            "devices": sorted({device.device_kind for device in jax.devices()}),
        },
        "versions": versions(["jax", "jaxlib", "numpy"]),
    }
