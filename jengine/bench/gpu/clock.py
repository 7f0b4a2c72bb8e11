"""Timing of device work: the best and the median of a few runs, after one that compiles.

In: a jitted function and its arrays. Out: seconds of one call among many in one program, so that
host time between calls is not counted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Seconds(NamedTuple):
    """Of one operation."""

    best: float
    median: float

    def as_microseconds(self) -> dict[str, float]:
        """For a line of a result."""
        return {"best_us": round(self.best * 1e6, 2), "median_us": round(self.median * 1e6, 2)}


def seconds_of(run: Callable[..., Any], *arrays: Any, repeats: int, calls: int = 1) -> Seconds:
    """Time a compiled program that makes `calls` calls of what is measured."""
    jax.block_until_ready(run(*arrays))
    measured = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(run(*arrays))
        measured.append((time.perf_counter() - began) / calls)
    return Seconds(min(measured), statistics.median(measured))
