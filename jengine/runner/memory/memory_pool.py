"""JAX's memory pool on an accelerator: sized before JAX starts it, read afterwards.

In: the share of a device that an engine may use. Out: JAX's environment variable, and the bytes an
engine may still allocate. Everything that depends on JAX's version or allocator is in this file.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

import jax
import psutil

from jengine.errors import ConfigError
from jengine.runner.memory.driver_memory import driver_memory

logger = logging.getLogger(__name__)
# The pool's share of the device, read by JAX when it starts its backend. The second name is
# deprecated; with both set JAX refuses to start.
POOL_VARIABLE = "XLA_CLIENT_MEM_FRACTION"
POOL_VARIABLES = (POOL_VARIABLE, "XLA_PYTHON_CLIENT_MEM_FRACTION")
# XLA's allocator; "platform" has no pool.
ALLOCATOR_VARIABLE = "XLA_PYTHON_CLIENT_ALLOCATOR"
# GB of pinned host memory that XLA may allocate, as needed: for sleeping weights and offloaded
# layers. 64 is XLA's default.
HOST_LIMIT_VARIABLE = "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB"
HOST_LIMIT = 64
# JAX's default.
JAX_POOL_SHARE = 0.75
# Fraction of the pool that the engine fills. The rest is for step inputs and outputs, XLA's
# autotuning of programs compiled while serving, and fragmentation.
FILLED = 0.97
# A larger pool would leave too little for CUDA's context, kernels, graphs and NCCL.
LARGEST_POOL_SHARE = 0.95
# The share that `start_devices` has set, if any; a process starts its devices once.
STARTED_WITH: list[float] = []
# Fraction of the free host memory that the cache may take on a CPU.
HOST_SHARE = 0.7


def backend_is_up() -> bool:
    """Whether JAX has started its devices, whose pools then have their final size."""
    try:  # JAX has no public function for this
        from jax._src.xla_bridge import backends_are_initialized
    except ImportError:  # then the pool stays as it is, and sizes follow it
        return True
    return backends_are_initialized()


def pool_share(share: float) -> float:
    """The pool's share of a device, for an engine that uses `share` of the device.

    Never below JAX's default: the rest of the program may need the pool as well.
    """
    wanted = min(share / FILLED, max(share, LARGEST_POOL_SHARE))
    return max(wanted, JAX_POOL_SHARE)


def start_devices(share: float) -> None:
    """Start JAX's devices with a memory pool for `share` of each. Call before their first use.

    Does nothing if the user has chosen a size or JAX is up already. Variables are set only while
    JAX starts, so that child processes do not inherit them.
    """
    if backend_is_up() or chosen_share() is not None:
        return
    settings = {POOL_VARIABLE: f"{pool_share(share):.4f}"}
    if HOST_LIMIT_VARIABLE not in os.environ:
        settings[HOST_LIMIT_VARIABLE] = str(host_limit())
    os.environ.update(settings)
    try:
        jax.local_devices()
        STARTED_WITH.append(pool_share(share))
    finally:
        for name in settings:
            del os.environ[name]


def host_limit() -> int:
    """GB of pinned host memory to allow: all host memory, at least XLA's default."""
    return max(HOST_LIMIT, psutil.virtual_memory().total // 2**30)


def available_bytes(device: jax.Device, share: float) -> int:
    """Bytes an engine may still allocate on this device: `share` of its memory, less what the
    process holds there already (parameters, and the user's arrays)."""
    if device.platform == "cpu":
        return int(psutil.virtual_memory().available * HOST_SHARE)
    stats = pool_stats(device)
    if stats is None:
        raise ConfigError(
            f"{device} does not say how much memory it has, and neither does its driver, as with "
            "XLA_PYTHON_CLIENT_ALLOCATOR=platform. Set kv_cache_memory_bytes, or use JAX's own "
            "allocator."
        )
    limit = stats["bytes_limit"]
    wanted = int(limit / configured_share() * share)
    usable = min(wanted, int(limit * FILLED))
    if usable < wanted:
        tell_small_pool(limit, wanted, usable, share)
    return usable - stats.get("bytes_in_use", 0)


def available_piece(device: jax.Device, share: float) -> int:
    """Bytes of the largest array that an engine may still allocate on this device."""
    left = available_bytes(device, share)
    piece = left if device.platform == "cpu" else free_bytes(device)
    if piece < left:
        tell_pieces(device, left, piece)
    return min(left, piece)


def free_bytes(device: jax.Device) -> int:
    """Size of the largest free block on this device; sys.maxsize if unknown."""
    if device.platform == "cpu":
        return psutil.virtual_memory().available
    stats = pool_stats(device)
    return sys.maxsize if stats is None else largest_piece(stats)


def pool_stats(device: jax.Device) -> Mapping[str, int] | None:
    """Memory statistics of the device's allocator, or of the driver if the allocator is not JAX's
    own (bytes in use are then those of all processes). None if neither reports any."""
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return stats
    found = driver_memory(device.local_hardware_id) if device.platform == "gpu" else None
    if found is None:
        return None
    free, total = found
    return {"bytes_limit": int(total * configured_share()), "bytes_in_use": total - free}


def largest_piece(stats: Mapping[str, int]) -> int:
    """The largest free block of a pool, which may be fragmented: the largest array that fits."""
    limit = stats["bytes_limit"]
    free = limit - stats.get("bytes_in_use", 0)
    largest = stats.get("largest_free_block_bytes", 0)
    if not largest:  # not reported, nothing allocated yet, or full
        return free
    # A pool that is not preallocated grows by contiguous regions.
    growth = limit - stats.get("pool_bytes", limit)
    return min(free, max(largest, growth))


def chosen_share() -> float | None:
    """Pool share that the user has set by environment variable, if any."""
    said = [os.environ[name] for name in POOL_VARIABLES if os.environ.get(name)]
    return float(said[0]) if said else None


def configured_share() -> float:
    """The share of a device that JAX's pool takes."""
    return chosen_share() or next(iter(STARTED_WITH), JAX_POOL_SHARE)


def tell_what_sleep_frees(platform: str) -> None:
    """Log that memory freed by sleep stays in JAX's pool, and how other processes can get it."""
    if platform == "cpu" or os.environ.get(ALLOCATOR_VARIABLE) == "platform":
        return
    logger.info(
        "sleep() gives memory back to JAX's pool, which serves this process alone. For other "
        "processes set %s=platform before the program first uses JAX, and kv_cache_memory_bytes; "
        "every allocation is then one of the driver's, which takes longer.", ALLOCATOR_VARIABLE,
    )  # fmt: skip


def tell_small_pool(limit: int, wanted: int, usable: int, share: float) -> None:
    """Log that the pool is smaller than requested, and what to do about it."""
    logger.log(
        logging.WARNING if chosen_share() is None else logging.INFO,
        "gpu_memory_utilization=%g asks for %.1f GB of each device, but JAX's memory pool ends at "
        "%.1f GB, so the engine uses %.1f GB. The pool cannot grow once JAX has started: set "
        "%s=%.2f before the program first uses JAX.",
        share, wanted / 1e9, limit / 1e9, usable / 1e9, POOL_VARIABLE, pool_share(share),
    )  # fmt: skip


def tell_pieces(device: jax.Device, left: int, piece: int) -> None:
    """Log that the cache is smaller because free memory is in pieces, and what to do about it."""
    logger.warning(
        "%s has %.2f GB for the engine, but the largest free piece is %.2f GB, and the KV cache is "
        "one array: it takes no more. Free the arrays that the program has made there, or create "
        "the engine before them.",
        device, left / 1e9, piece / 1e9,
    )  # fmt: skip
