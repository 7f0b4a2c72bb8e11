"""Parses JAX profiler traces: device time per kernel, and CUDA API calls.

In: a function that runs the work and waits for it. Out: a DeviceTrace. CPUs have no device time.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.profiler import ProfileData

# Planes of devices; within them the lines of streams, beside summaries that repeat their events.
DEVICE, STREAM = "/device:GPU", "Stream"
# Calls of the CUDA driver and runtime.
CUDA_CALL = re.compile(r"cu(da)?[A-Z]\w+$")
GRAPH_UPDATE = re.compile(r"cu(da)?Graph(Exec\w*SetParams|ExecUpdate|ExecNodeSet)")
GRAPH_INSTANTIATION = re.compile(r"cu(da)?GraphInstantiate")
GRAPH_LAUNCH = re.compile(r"cu(da)?GraphLaunch")
KERNEL_LAUNCH = re.compile(r"cu(da)?LaunchKernel")


class KernelRuns(NamedTuple):
    """All runs of one kernel."""

    runs: int
    seconds: float


class DeviceTrace(NamedTuple):
    kernels: dict[str, KernelRuns]  # by name; of graphs too, where these are recorded as a whole
    calls: Counter[str]  # of CUDA, by name

    @property
    def device_seconds(self) -> float | None:
        """Total device time; None if none was recorded."""
        return sum(kernel.seconds for kernel in self.kernels.values()) or None

    def count(self, pattern: re.Pattern[str]) -> int:
        """CUDA API calls whose name starts with `prefix`."""
        return sum(count for name, count in self.calls.items() if pattern.match(name))

    def slowest(self, count: int) -> dict[str, dict[str, float]]:
        """The kernels with the most time, as fields of a result line."""
        order = sorted(self.kernels.items(), key=lambda item: -item[1].seconds)
        return {
            name[:80]: {"runs": kernel.runs, "us": round(kernel.seconds * 1e6, 1)}
            for name, kernel in order[:count]
        }


def traced(work: Callable[[], Any]) -> DeviceTrace:
    """Run the work under the profiler."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            work()
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        return read_planes(ProfileData.from_file(str(files[-1])).planes)


def read_planes(planes: Iterable[Any]) -> DeviceTrace:
    """Kernels of all devices, and CUDA API calls of all threads."""
    kernels: dict[str, KernelRuns] = {}
    calls: Counter[str] = Counter()
    for plane in planes:
        on_device = plane.name.startswith(DEVICE)
        for line in plane.lines:
            if on_device and not line.name.startswith(STREAM):
                continue
            for event in line.events:
                if on_device:
                    runs, seconds = kernels.get(event.name, KernelRuns(0, 0.0))
                    kernels[event.name] = KernelRuns(runs + 1, seconds + event.duration_ns * 1e-9)
                elif CUDA_CALL.match(event.name):
                    calls[event.name] += 1
    return DeviceTrace(kernels, calls)
