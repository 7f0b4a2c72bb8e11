"""Peak memory of a process and its device, beyond weights and KV cache.

In: an engine. Out: gigabytes. On a CPU it is the peak of the whole process, loading and compiling
included; on a device that reports a peak, it is that.
"""

from __future__ import annotations

import psutil

from jengine.api.llm import LLM
from jengine.bench.machine import peak_bytes
from jengine.runner.reports import device_memory


def peak_memory(llm: LLM) -> dict[str, float | None]:
    """Peak so far, and how much of it is neither weights nor KV cache."""
    each = [device_memory(runner.loaded) for runner in llm.engine.runners]
    of_device = device_stats(llm).get("peak_bytes_in_use")
    if of_device is None:  # all devices share the process's memory
        weights = sum(one.weights * one.devices for one in each)
        cache = sum(one.cache * one.devices for one in each)
    else:
        weights, cache = each[0].weights, each[0].cache
    peak = peak_bytes() if of_device is None else of_device
    return {
        "peak_resident_gb": in_gb(peak_bytes()),
        "peak_device_gb": None if of_device is None else in_gb(of_device),
        "weights_gb": in_gb(weights),
        "cache_gb": in_gb(cache),
        "over_weights_and_cache_gb": in_gb(peak - weights - cache),
    }


def device_stats(llm: LLM) -> dict[str, int]:
    """Memory statistics of the first device; empty on CPUs."""
    return llm.mesh.local_devices[0].memory_stats() or {}


def resident_bytes() -> int:
    """RSS of this process."""
    return psutil.Process().memory_info().rss


def in_gb(count: int) -> float:
    """Bytes as GB, rounded to 0.1 MB."""
    return round(count / 1e9, 4)
