"""Sizes the paged KV cache: as configured, or what fits beside parameters and scratch memory.

The largest step is compiled for a size chosen by an estimate of its scratch memory; the compiler's
report decides whether that size stays. Sizes are rounded, because the keys of all programs in the
compile cache depend on them. Must not know devices' allocators or compilers.

Each cache group has its own pool and array, sized in proportion to what its requests can use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax

from jengine.config import CacheGroup, ModelConfig
from jengine.errors import CapacityError, ConfigError
from jengine.runner.memory.memory_pool import available_piece, free_bytes

# Block counts keep this many significant bits: the loss is at most 1/64.
SIGNIFICANT_BITS = 7
# Fraction of the free memory that a new size leaves unused, so that it still fits when the next
# process, or the next machine of this kind, has a little less.
RESERVE = 1 / 128
# A size is kept if it is at least this fraction of the best one, since another size recompiles
# every program. A host's free memory differs at each start, an accelerator's hardly.
ENOUGH = {"cpu": 0.75}
ENOUGH_ON_ACCELERATORS = 15 / 16


@dataclass(frozen=True)
class BlockDemand:
    """Block size of a group in bytes, and the numbers of blocks that are useful and required."""

    group: CacheGroup
    block_bytes: int
    most_useful: int  # by all rows at full length, prefix cache aside
    at_least: int  # one request as long as the context


def free_on_each(devices: Sequence[jax.Device]) -> int:
    """Bytes that one array may take on each of these devices, whatever share the engine has."""
    return _least(list(map(free_bytes, devices)), devices)


def available_on_each(devices: Sequence[jax.Device], share: float) -> int:
    """Bytes of the largest array that the engine may still allocate on each of these devices."""
    return _least([available_piece(device, share) for device in devices], devices)


def _least(each: list[int], devices: Sequence[jax.Device]) -> int:
    least = min(each)
    # Virtual CPU devices share the host's memory.
    return least // len(devices) if devices[0].platform == "cpu" else least


def scratch_bytes(model: ModelConfig, tokens: int, logits: int, devices: int = 1) -> int:
    """An upper estimate of a step's scratch memory: activations of its tokens and rows of logits.

    MLP activations and logits are sharded over `devices`; hidden states are not.
    """
    inner = max(
        max(layer.ffn.active_size, layer.mixer.largest_activation) for layer in model.layers
    )
    activations = tokens * (6 * model.hidden_size + 3 * inner // devices)
    return 4 * (activations + 3 * logits * model.vocab_size // devices)


def cost(demands: Sequence[BlockDemand], blocks: Sequence[int]) -> int:
    """Total bytes of these numbers of blocks."""
    return sum(n * demand.block_bytes for n, demand in zip(blocks, demands, strict=True))


def least_blocks(demands: Sequence[BlockDemand]) -> tuple[int, ...]:
    """Blocks for one request of maximum length, plus the null block."""
    return tuple(demand.at_least + 1 for demand in demands)


def wished_blocks(demands: Sequence[BlockDemand]) -> tuple[int, ...]:
    """Blocks for every row at maximum length."""
    return tuple(max(demand.most_useful, demand.at_least) + 1 for demand in demands)


def blocks_for(demands: Sequence[BlockDemand], budget: int) -> tuple[int, ...]:
    """Divide a budget of bytes among the groups by what they can use, null blocks included."""
    wished = sum(demand.most_useful * demand.block_bytes for demand in demands)
    least = cost(demands, least_blocks(demands))
    if budget < least:
        raise ConfigError(
            f"the cache gets {budget / 1e6:.1f} MB, but one request as long as the context needs "
            f"{least / 1e6:.1f} MB. Raise kv_cache_memory_bytes to {least} or more, or lower "
            "max_model_len."
        )
    share = (budget - least) / max(wished, 1)
    return tuple(demand.at_least + 1 + int(share * demand.most_useful) for demand in demands)


def overridden_blocks(demands: Sequence[BlockDemand], count: int) -> tuple[int, ...]:
    """`num_gpu_blocks_override` in every group, the null block included. Recurrent groups get at
    most as many states as are useful: a state is much larger than a block."""
    least = max(demand.at_least + 1 for demand in demands)
    if count < least:
        raise ConfigError(
            f"num_gpu_blocks_override={count}: one request as long as the context needs {least} "
            "blocks, the null block included. Raise it, or lower max_model_len."
        )
    return tuple(
        min(count, wished) if demand.group.spec.is_state else count
        for demand, wished in zip(demands, wished_blocks(demands), strict=True)
    )


def refuse_more_than(present: int, demands: Sequence[BlockDemand], blocks: tuple[int, ...]) -> None:
    """Refuse a cache of a requested size if the device has not that much free memory."""
    wanted = cost(demands, blocks)
    if wanted > present:
        raise CapacityError(
            f"the KV cache was asked to take {wanted / 1e9:.2f} GB, but {present / 1e9:.2f} GB of "
            "the device's memory are free. Lower kv_cache_memory_bytes (or "
            "num_gpu_blocks_override), or leave it out: the cache then takes what fits."
        )


def rounded(blocks: int) -> int:
    """Round down to SIGNIFICANT_BITS significant bits."""
    step = 1 << max(blocks.bit_length() - SIGNIFICANT_BITS, 0)
    return blocks // step * step


def fitting_blocks(demands: Sequence[BlockDemand], budget: int) -> tuple[int, ...]:
    """The wished blocks if they fit into the budget, else a rounded number that fits."""
    wished = wished_blocks(demands)
    if cost(demands, wished) <= budget:
        return wished
    least = least_blocks(demands)
    reserved = max(budget - int(budget * RESERVE), min(budget, cost(demands, least)))
    most = blocks_for(demands, reserved)
    return tuple(max(rounded(n), few) for n, few in zip(most, least, strict=True))


def planned_blocks(
    demands: Sequence[BlockDemand],
    available: int,
    scratch: int,
    recorded: tuple[int, ...] | None,
    enough: float,
) -> tuple[int, ...]:
    """The blocks that the largest step is compiled for, before its scratch memory is known.

    A recorded size is used again if it fits and is at least `enough` of what this start would take.
    """
    # The estimate may be too high: the minimum is refused only by the compiler's report.
    budget = max(available - scratch, cost(demands, least_blocks(demands)))
    chosen = fitting_blocks(demands, budget)
    if recorded is None or len(recorded) != len(demands):
        return chosen
    fits = cost(demands, recorded) <= available and all(
        map(int.__ge__, recorded, least_blocks(demands))
    )
    return (
        recorded if fits and cost(demands, recorded) >= enough * cost(demands, chosen) else chosen
    )


def settled_blocks(
    demands: Sequence[BlockDemand],
    planned: tuple[int, ...],
    scratch: int,
    available: int,
    enough: float,
) -> tuple[int, ...]:
    """The planned blocks if they fit beside the reported scratch memory and are `enough` of what
    would fit, else as many as fit."""
    try:
        best = fitting_blocks(demands, available - scratch)
    except ConfigError as error:
        raise CapacityError(
            f"{available / 1e9:.2f} GB are available; the largest step needs "
            f"{scratch / 1e9:.2f} GB of scratch memory. {error}"
        ) from error
    fits = cost(demands, planned) + scratch <= available
    return planned if fits and cost(demands, planned) >= enough * cost(demands, best) else best


def enough_on(platform: str) -> float:
    """Fraction of the best size that is accepted without recompiling, on this platform."""
    return ENOUGH.get(platform, ENOUGH_ON_ACCELERATORS)
