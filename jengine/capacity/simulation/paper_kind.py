"""The replicas that a plan on paper describes: limits of a step, size of the cache, step times.

In: a Paper. Out: a ReplicaKind. Must not know traces.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from jengine.assembly.sizes.device_defaults import OVERLAP_DEPTH
from jengine.capacity.device_memory import gigabytes
from jengine.capacity.paper import Paper
from jengine.capacity.simulation.replica import ReplicaKind
from jengine.capacity.simulation.step_times import StepLoad, stepwise
from jengine.capacity.step_estimate import Timing
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
        devices=memory.layout.devices_a_replica,
        token_bytes=token_bytes(memory.config, memory.codes),
    )


def token_bytes(config: ModelConfig, codes: str | None) -> int:
    """Keys and values of one token in all layers, once, however devices divide or repeat them."""
    size = ITEM_BYTES.get(config.dtype, 4)
    specs = (spec for spec in config.cache_specs if not spec.is_state)
    return sum(kept_bytes(spec, size, has_codes=bool(codes)) for spec in specs)


# The context at which the growth of what a token reads and computes is taken, with windows.
FAR = 1 << 20


@dataclass
class ModelTimes:
    """Step times predicted by a roofline model of devices that need not be present."""

    timing: Timing
    _fixed: dict[int, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        timing = self.timing
        assumed, device = timing.assumed, timing.device
        self._read = 1 / (device.bandwidth * assumed.bandwidth_share)
        self._compute = 1 / (device.flops * assumed.flops_share)
        self._own_tokens = timing.memory.layout.own_tokens
        layers = len(timing.memory.stage) * assumed.between_launches
        self._launches = (layers * assumed.decode_launches, layers * assumed.prefill_launches)
        self._token = timing.operations()
        self._head = timing.head_operations()
        self._is_linear = not any(spec.window for spec in timing.memory.config.cache_specs)
        self._context_bytes = timing.memory.read_bytes(FAR) / FAR
        self._context_operations = timing.attention(FAR) / FAR

    def seconds(self, load: StepLoad) -> float:
        """max(memory time, compute time) plus launches and communication."""
        tokens = load.decode_rows + load.prefill_tokens
        fixed = self._fixed.get(tokens)
        if fixed is None:
            fixed = self._fixed[tokens] = self._of(tokens)
        weights, exchanges = fixed
        own = self._own_tokens(tokens)
        share = own / tokens  # of the group with the most, with prefill context parallelism
        if self._is_linear:
            cache = self._context_bytes * (load.decode_context * share + load.prefill_read)
            attended = (load.decode_context + load.attended) * share
            attention = self._context_operations * attended
        else:
            cache, attention = self._by_mean(load, share)
        operations = own * self._token + load.sampled * self._head + attention
        busy = max((weights + cache) * self._read, operations * self._compute)
        return busy + self._launches[load.prefill_tokens > 0] + exchanges

    def ends(self, load: StepLoad, at: float, runs: int, until: float) -> list[float]:
        """Decode-only steps differ in context alone, in which time is linear without windows."""
        rows, context, ends = load.decode_rows, load.decode_context, []
        if load.prefill_tokens or not self._is_linear:
            return stepwise(self, load, at, runs, until)
        weights, exchanges = self._fixed.get(rows) or self._fixed.setdefault(rows, self._of(rows))
        own = self._own_tokens(rows)
        share = own / rows
        operations, launches = own * self._token + load.sampled * self._head, self._launches[0]
        read, compute = self._read, self._compute
        while len(ends) < runs and at <= until:
            each = context * share
            memory = (weights + self._context_bytes * each) * read
            arithmetic = (operations + self._context_operations * each) * compute
            at += (memory if memory >= arithmetic else arithmetic) + launches + exchanges
            ends.append(at)
            context += rows
        return ends

    def _of(self, tokens: int) -> tuple[float, float]:
        """Weight bytes read for `tokens` tokens, and seconds of communication."""
        exchanges = sum(one.seconds for one in self.timing.exchanges(tokens))
        return self.timing.weights_read(self._own_tokens(tokens)), exchanges

    def _by_mean(self, load: StepLoad, share: float) -> tuple[float, float]:
        """Attention bytes and FLOPs under sliding windows, from mean contexts."""
        timing, cache, operations = self.timing, 0.0, 0.0
        if load.decode_rows:
            mean = load.decode_context // load.decode_rows
            cache += load.decode_rows * timing.memory.read_bytes(mean) * share
            operations += load.decode_rows * timing.attention(mean)
        if load.prefill_tokens:
            cache += timing.memory.read_bytes(load.prefill_read)
            mean = load.attended // load.prefill_tokens
            operations += load.prefill_tokens * timing.attention(mean)
        return cache, operations * share
