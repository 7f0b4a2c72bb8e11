"""Memory read bandwidth of all cores: lower bound of a step's time, as bytes over GB/s."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from jengine.bench.machine import cores

# Larger than the caches of most processors.
PROBE_NUMBERS = 2**28
PROBES = 5
PARTS_PER_THREAD = 8


def read_gb_s(numbers: int = PROBE_NUMBERS) -> float:
    """Best of a few passes over 1 GiB of float32, one thread per core."""
    threads = cores() or 1
    parts = np.array_split(np.ones(numbers, np.float32), threads * PARTS_PER_THREAD)
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(PROBES):
            began = time.perf_counter()
            # A dot product of a part with itself reads it once, with vector instructions and
            # without Python's lock.
            list(pool.map(lambda part: np.dot(part, part), parts))
            best = min(best, time.perf_counter() - began)
    return round(4 * numbers / 1e9 / best, 2)
