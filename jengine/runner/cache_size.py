"""Sizes the paged cache from what the compiled largest step says it needs.

First the wished-for number of blocks is compiled; if parameters, state and scratch memory fit, it
stays and nothing is compiled twice. Otherwise the measured scratch memory decides.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import psutil

from jengine.config import CacheGroup
from jengine.errors import CapacityError, ConfigError

logger = logging.getLogger(__name__)
# Host memory that is left to everybody else when the cache is sized on a CPU.
CPU_SHARE = 0.7


@dataclass(frozen=True)
class BlockDemand:
    """What one group's blocks cost, and how many are wished for or needed at least."""

    group: CacheGroup
    block_bytes: int
    most_useful: int  # more than this could never be in use at once, prefix cache aside
    at_least: int  # one request as long as the context


def available_bytes(device: jax.Device, gpu_share: float, cpu_share: float = CPU_SHARE) -> int:
    """Bytes the engine may take on this device, on top of what is already in use."""
    stats = device.memory_stats()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"] * gpu_share) - stats.get("bytes_in_use", 0)
    return int(psutil.virtual_memory().available * cpu_share)


def available_on_each(
    devices: Sequence[jax.Device], gpu_share: float, cpu_share: float = CPU_SHARE
) -> int:
    """Bytes that the engine may take on every one of these devices."""
    least = min(available_bytes(device, gpu_share, cpu_share) for device in devices)
    # The devices that XLA makes of one CPU take from one memory.
    return least // len(devices) if devices[0].platform == "cpu" else least


def blocks_for(demands: list[BlockDemand], budget: int) -> tuple[int, ...]:
    """Spread a budget over the groups, in proportion to what they can use; null block included."""
    wished = sum(demand.most_useful * demand.block_bytes for demand in demands)
    least = sum((demand.at_least + 1) * demand.block_bytes for demand in demands)
    if budget < least:
        raise ConfigError(
            f"the cache gets {budget / 1e6:.1f} MB, but one request as long as the context needs "
            f"{least / 1e6:.1f} MB. Raise kv_cache_memory_bytes to {least} or more, or lower "
            "max_model_len."
        )
    share = (budget - least) / max(wished, 1)
    return tuple(demand.at_least + 1 + int(share * demand.most_useful) for demand in demands)


def overridden_blocks(demands: list[BlockDemand], count: int) -> tuple[int, ...]:
    """`num_gpu_blocks_override` in every group, the null block included."""
    least = max(demand.at_least + 1 for demand in demands)
    if count < least:
        raise ConfigError(
            f"num_gpu_blocks_override={count}: one request as long as the context needs {least} "
            "blocks, the null block included. Raise it, or lower max_model_len."
        )
    return (count,) * len(demands)


def refuse_more_than(present: int, demands: list[BlockDemand], blocks: tuple[int, ...]) -> None:
    """Refuse a cache of a size that was asked for if the device has no such memory."""
    wanted = sum(n * demand.block_bytes for n, demand in zip(blocks, demands, strict=True))
    if wanted > present:
        raise CapacityError(
            f"the KV cache was asked to take {wanted / 1e9:.2f} GB, but {present / 1e9:.2f} GB of "
            "the device's memory are free. Lower kv_cache_memory_bytes (or "
            "num_gpu_blocks_override), or leave it out: the cache then takes what fits."
        )


def wished_blocks(demands: list[BlockDemand], budget: int | None) -> tuple[int, ...]:
    """Without a budget of the user's: room for every row at full length."""
    if budget is not None:
        return blocks_for(demands, budget)
    return tuple(max(demand.most_useful, demand.at_least) + 1 for demand in demands)


def affordable_blocks(
    demands: list[BlockDemand], wished: tuple[int, ...], temp_bytes: int, available: int
) -> tuple[int, ...]:
    """The wished-for blocks if they fit beside the scratch memory, else as many as do."""
    wanted = sum(n * demand.block_bytes for n, demand in zip(wished, demands, strict=True))
    if wanted + temp_bytes <= available:
        return wished
    budget = available - temp_bytes
    try:
        blocks = blocks_for(demands, budget)
    except ConfigError as error:
        raise CapacityError(
            f"{available / 1e9:.2f} GB are available; the largest step needs "
            f"{temp_bytes / 1e9:.2f} GB of scratch memory. {error}"
        ) from error
    logger.info("cache reduced from %s to %s blocks to fit %d bytes", wished, blocks, available)
    return blocks
