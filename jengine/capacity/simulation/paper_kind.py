"""The replicas that a plan on paper describes: limits of a step, size of the cache, step times.

In: a Paper. Out: a ReplicaKind. Must not know traces.
"""

from __future__ import annotations

from jengine.assembly.sizes.device_defaults import OVERLAP_DEPTH
from jengine.capacity.device_memory import gigabytes
from jengine.capacity.paper import Paper
from jengine.capacity.simulation.model_times import ModelTimes
from jengine.capacity.simulation.replica import ReplicaKind
from jengine.config import CacheConfig, ModelConfig
from jengine.errors import ConfigError
from jengine.kvcache.kinds import blocks_needed
from jengine.metrics.cost import ITEM_BYTES, kept_bytes
from jengine.runner.memory.cache_size import BlockDemand, cost, fitting_blocks, least_blocks


def paper_kind(paper: Paper) -> ReplicaKind:
    """One replica of a plan; data parallelism is the number of replicas, which is not in it."""
    memory = paper.memory
    schedule = memory.schedule
    in_flight = (OVERLAP_DEPTH + 1) * schedule.max_num_batched_tokens
    longest = schedule.max_model_len
    demands = []
    for group, size in memory.groups:
        need = blocks_needed(group.spec, longest, memory.block_size, in_flight)
        demands.append(BlockDemand(group, size, need * schedule.max_num_seqs, need))
    least = cost(demands, least_blocks(demands))
    if memory.cache < least:
        raise ConfigError(
            f"{paper.name} on {memory.layout.devices} x {paper.timing.device.name}: one request "
            f"as long as the context needs {gigabytes(least)} of cache on each device, and "
            f"{gigabytes(max(memory.cache, 0))} are left. Raise --tp, or lower --max-model-len."
        )
    cache = CacheConfig(
        tuple(group for group, _ in memory.groups),
        memory.block_size,
        fitting_blocks(demands, memory.cache),
    )
    stages = memory.layout.pp
    depth = OVERLAP_DEPTH + stages - 1
    return ReplicaKind(
        schedule,
        cache,
        ModelTimes(paper.timing),
        depth,
        stages,
        devices=memory.layout.tp * stages,
        token_bytes=token_bytes(memory.config, memory.codes),
    )


def token_bytes(config: ModelConfig, codes: str | None) -> int:
    """Keys and values of one token in all layers, once, however devices divide or repeat them."""
    size = ITEM_BYTES.get(config.dtype, 4)
    specs = (spec for spec in config.cache_specs if not spec.is_state)
    return sum(kept_bytes(spec, size, has_codes=bool(codes)) for spec in specs)
