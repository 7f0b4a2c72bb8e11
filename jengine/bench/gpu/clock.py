"""Timing of device work: best and median of a few runs, after a compile run.

In: a jitted function and its arrays. Out: seconds per call, from many calls in one program, so that
host time between calls is excluded; or device time from JAX's profiler.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from jengine.bench.gpu.device_trace import traced


class Seconds(NamedTuple):
    """Seconds per call: best and median."""

    best: float  # on the device where that was profiled, else of the fastest run
    median: float  # of runs, by the host's clock

    def as_microseconds(self) -> dict[str, float]:
        """As fields of a result line."""
        return {"best_us": round(self.best * 1e6, 2), "median_us": round(self.median * 1e6, 2)}


def seconds_of(
    run: Callable[..., Any], *arrays: Any, repeats: int, calls: int = 1, profiled: bool = False
) -> Seconds:
    """Time a compiled program that contains `calls` calls of the measured function.

    `profiled`: use device time, from one more run under the profiler. On CPUs only host time
    exists.
    """
    jax.block_until_ready(run(*arrays))
    measured = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(run(*arrays))
        measured.append((time.perf_counter() - began) / calls)
    best = min(measured)
    if profiled:
        on_device = traced(lambda: jax.block_until_ready(run(*arrays))).device_seconds
        best = best if on_device is None else on_device / calls
    return Seconds(best, statistics.median(measured))
