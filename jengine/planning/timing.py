"""Step time, as a floor and as an estimate: bytes and operations over the rates of a device.

In: Memory, a device and the work. Out: Timing, in seconds. No step was timed: `Assumptions` names
every number that is neither a shape nor from a data sheet.
"""

from __future__ import annotations

from dataclasses import dataclass

from jengine.config import ExpertsConfig
from jengine.planning.accelerators import Accelerator
from jengine.planning.device_memory import Memory, Part

FLOAT32 = 4


@dataclass(frozen=True)
class Assumptions:
    """What neither a shape nor a data sheet says."""

    # Reached by large copies and matmuls on an H200.
    bandwidth_share: float = 0.9
    flops_share: float = 0.8
    # A network port for each device, one way.
    network: float = 50e9
    # Until the first byte of an exchange has reached all devices.
    link_latency: float = 10e-6
    network_latency: float = 25e-6
    # Kernels per layer of a step compiled for an H200, where a step is one CUDA graph: the larger
    # of llama-8b (decode 307 for 32 layers, with prompt tokens 347) and qwen3-0.6b (270 and 307 for
    # 28) by `python -m jengine.bench.gpu_proof`, matmuls of 64 tokens and more by cuBLASLt.
    decode_launches: float = 9.7
    prefill_launches: float = 11.0
    between_launches: float = 1e-6  # seconds, not measured


@dataclass(frozen=True)
class Work:
    """The load of one replica."""

    batch: int  # requests that decode
    context: int  # tokens of each of them, on average
    prefill: int  # prompt tokens of a prefill step


@dataclass(frozen=True)
class Exchange:
    """One kind of communication in a step."""

    what: str
    link: str
    count: int
    bytes: int  # sent by one device in all of them
    seconds: float


@dataclass(frozen=True)
class StepTime:
    """One step of one plan on the slowest stage."""

    tokens: int
    weights_read: int
    cache_read: int
    operations: float
    floor: float  # memory or arithmetic at the data sheet's rates, whichever takes longer
    memory_bound: bool
    expected: float  # with the shares that are reached, launches and exchanges
    launches: float
    exchanges: tuple[Exchange, ...]  # none is assumed to overlap with anything


@dataclass(frozen=True)
class Timing:
    """Steps of a model on devices."""

    memory: Memory
    device: Accelerator
    assumed: Assumptions

    def decode(self, work: Work) -> StepTime:
        """One token for each request of one plan; there are as many plans as stages."""
        rows = -(-work.batch // self.memory.layout.pp)
        read = sum(round(part.bytes * self._touched(part, rows)) for part in self.memory.parts)
        cache = rows * self.memory.read_bytes(work.context)
        operations = rows * (self._operations(head=True) + self._attention(work.context))
        return self._step(rows, read, cache, operations, self.assumed.decode_launches)

    def prefill(self, work: Work) -> StepTime:
        """A prefill-only step, from the middle of prompts of the context's length."""
        tokens = work.prefill
        read = sum(round(part.bytes * self._touched(part, tokens)) for part in self.memory.parts)
        prompts = -(-tokens // work.context)
        operations = tokens * (self._operations(head=False) + self._attention(work.context // 2))
        cache = prompts * self.memory.read_bytes(work.context)
        return self._step(tokens, read, cache, operations, self.assumed.prefill_launches)

    def tokens_a_second(self, work: Work, seconds: float) -> float:
        """Tokens per second of all replicas, with every stage busy."""
        rows = -(-work.batch // self.memory.layout.pp)
        return self.memory.layout.dp * rows / seconds

    def _step(
        self, tokens: int, weights: int, cache: int, operations: float, launches_per_layer: float
    ) -> StepTime:
        assumed = self.assumed
        reading = (weights + cache) / self.device.bandwidth
        computing = operations / self.device.flops
        launches = len(self.memory.stage) * launches_per_layer * assumed.between_launches
        exchanges = tuple(self._exchanges(tokens))
        busy = max(reading / assumed.bandwidth_share, computing / assumed.flops_share)
        return StepTime(
            tokens=tokens,
            weights_read=weights,
            cache_read=cache,
            operations=operations,
            floor=max(reading, computing),
            memory_bound=reading >= computing,
            expected=busy + launches + sum(exchange.seconds for exchange in exchanges),
            launches=launches,
            exchanges=exchanges,
        )

    def _touched(self, part: Part, tokens: int) -> float:
        """The share of a parameter that a step of so many tokens reads."""
        config = self.memory.config
        if part.path in ("embed.weight", "position_embed.weight") and not (
            part.path == "embed.weight" and config.tie_embeddings
        ):
            return 0.0  # one row per token
        return 1 - (1 - self._share_of_a_token(part)) ** tokens

    def _share_of_a_token(self, part: Part) -> float:
        """The share of a parameter that one token is multiplied with."""
        if part.layer is None or "experts" not in part.axes:
            return 1.0
        ffn = self.memory.config.layers[part.layer].ffn
        assert isinstance(ffn, ExpertsConfig), f"{part.path}: experts without a config"
        return ffn.experts_per_token / ffn.num_experts

    def _operations(self, *, head: bool) -> float:
        """Operations of the matmuls with parameters, per token on one device."""
        config = self.memory.config
        head_path = "embed.weight" if config.tie_embeddings else "head.weight"
        total = 0.0
        for part in self.memory.parts:
            if part.layer is None and not (head and part.path == head_path):
                continue
            total += 2 * part.elements * self._share_of_a_token(part)
        return total

    def _attention(self, context: int) -> float:
        """Operations of attention scores and weighted values, per token on one device."""
        mixers = [self.memory.config.layers[layer].mixer for layer in self.memory.stage]
        return sum(
            mixer.operations / self.memory.layout.tp * min(context, mixer.window or context)
            for mixer in mixers
        )  # fmt: skip

    def _exchanges(self, tokens: int) -> list[Exchange]:
        layout = self.memory.layout
        hidden = tokens * self.memory.config.hidden_size * FLOAT32
        found = []
        if layout.tp > 1:
            # Two all-reduces per layer and one for the embedding, as the compiled program has them.
            count = 2 * len(self.memory.stage) + 1
            sums = hidden // 2 if self.memory.config.dtype == "bfloat16" else hidden
            found.append(
                self._all_reduces("all-reduces within a layer", count, sums, layout.tp, True)
            )
        if layout.pp > 1:
            found += [self._to_next_stage(hidden), self._last_results(hidden)]
        return found

    def _all_reduces(
        self, what: str, count: int, size: int, devices: int, tensor: bool
    ) -> Exchange:
        """Ring all-reduces. A ring over several hosts uses all network ports of each host."""
        layout, assumed = self.memory.layout, self.assumed
        hosts = layout.tensor_hosts if tensor else 1 + layout.stages_cross_hosts
        sent = round(2 * (devices - 1) / devices * size)
        rate, latency, link = self.device.link, assumed.link_latency, self.device.link_name
        if hosts > 1:
            ports = layout.devices_a_host if tensor else 1
            rate, link = min(rate, ports * assumed.network), f"{link} and network"
            latency += assumed.network_latency
        return Exchange(what, link, count, count * sent, count * (sent / rate + latency))

    def _to_next_stage(self, size: int) -> Exchange:
        """Each device sends hidden states to the device of its rank in the next stage."""
        assumed, across = self.assumed, self.memory.layout.stages_cross_hosts
        rate = assumed.network if across else self.device.link
        latency = assumed.network_latency if across else assumed.link_latency
        link = "network" if across else self.device.link_name
        return Exchange("to the next stage", link, 1, size, size / rate + latency)

    def _last_results(self, size: int) -> Exchange:
        """The last stage's hidden states to all stages, which share the head."""
        return self._all_reduces(
            "last stage's results to all", 1, size, self.memory.layout.pp, False
        )
