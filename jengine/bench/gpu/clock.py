"""Timing of device work: the best and the median of a few runs, after one that compiles.

In: a jitted function and its arrays. Out: seconds of one call among many in one program, so that
host time between calls is not counted; or the device's own time, by JAX's profiler.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from jengine.bench.gpu.trace import traced


class Seconds(NamedTuple):
    """Of one operation."""

    best: float  # on the device where that was profiled, else of the fastest run
    median: float  # of runs, by the host's clock

    def as_microseconds(self) -> dict[str, float]:
        """For a line of a result."""
        return {"best_us": round(self.best * 1e6, 2), "median_us": round(self.median * 1e6, 2)}


def seconds_of(
    run: Callable[..., Any], *arrays: Any, repeats: int, calls: int = 1, profiled: bool = False
) -> Seconds:
    """Time a compiled program that makes `calls` calls of what is measured.

    `profiled`: by the device's clock in one more run, which takes the profiler a moment. On a CPU
    there is only the host's.
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
