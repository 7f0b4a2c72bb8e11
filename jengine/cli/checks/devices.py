"""Doctor: devices seen by JAX and their free memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import psutil

from jengine.assembly.backend import start_backend
from jengine.assembly.settings.args import EngineArgs
from jengine.capacity.device_memory import gigabytes
from jengine.cli.checks.finding import Finding, Level
from jengine.errors import ConfigError
from jengine.runner.memory.memory_pool import largest_piece

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def check() -> list[Finding]:
    """One finding per device, and one for the host's memory."""
    try:
        start_backend(EngineArgs.gpu_memory_utilization)  # with the same memory pool as engines
    except ConfigError as error:
        return [Finding("problem", "devices", str(error)), host_memory()]
    devices = jax.local_devices()
    return [*map(describe, devices), *unused_gpu(devices[0].platform), host_memory()]


def describe(device: jax.Device) -> Finding:
    """A device and its memory, if the backend reports it."""
    stats = device.memory_stats() or {}
    figures: dict[str, Any] = {
        "id": device.id,
        "platform": device.platform,
        "kind": device.device_kind,
    }
    text = f"{device.platform}:{device.id} {device.device_kind}"
    if "bytes_limit" in stats:
        free = stats["bytes_limit"] - stats.get("bytes_in_use", 0)
        figures["memory_free"] = free
        text += f", {gigabytes(free)} of {gigabytes(stats['bytes_limit'])} free"
        piece = figures["largest_free_piece"] = largest_piece(stats)
        text += f", {gigabytes(piece)} in one piece" if piece < free else ""
    return Finding("OK", "devices", text, figures)


def unused_gpu(platform: str) -> list[Finding]:
    """A note if there is an NVIDIA driver but JAX runs on the CPU."""
    if platform != "cpu" or not NVIDIA_DRIVER.exists():
        return []
    text = "an NVIDIA driver is installed, but JAX uses the CPU: pip install 'jax[cuda12]'"
    return [Finding("note", "devices", text)]


def host_memory() -> Finding:
    """The host's memory and cores."""
    memory = psutil.virtual_memory()
    figures = {"available": memory.available, "total": memory.total}
    cores = psutil.cpu_count(logical=True)
    text = f"{gigabytes(memory.available)} of {gigabytes(memory.total)} available, {cores} cores"
    level: Level = "OK" if memory.available > 1e9 else "note"
    return Finding(level, "memory", text, figures)
