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
EXCHANGED = 2  # bytes of a number that tokens have on their way to experts and back


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
    shared: int = 0  # leading tokens that all of them have in common


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
    cache_saved: int  # that would be read too if rows did not read together what they share
    host_read: int  # weights that are copied from the host's memory
    operations: float
    # Memory, arithmetic or copies from the host at the data sheet's rates, whichever takes longest.
    floor: float
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
        read = self.weights_read(rows)
        saved = self.memory.read_once(rows, min(work.shared, work.context - 1))
        cache = rows * self.memory.read_bytes(work.context) - saved
        operations = rows * (self.operations(head=True) + self.attention(work.context))
        return self._step(rows, read, cache, operations, self.assumed.decode_launches, saved)

    def prefill(self, work: Work) -> StepTime:
        """A prefill-only step, from the middle of prompts of the context's length."""
        tokens = work.prefill
        read = self.weights_read(tokens)
        prompts = -(-tokens // work.context)
        operations = tokens * (self.operations(head=False) + self.attention(work.context // 2))
        cache = prompts * self.memory.read_bytes(work.context)
        return self._step(tokens, read, cache, operations, self.assumed.prefill_launches)

    def tokens_a_second(self, work: Work, seconds: float) -> float:
        """Tokens per second of all replicas, with every stage busy."""
        rows = -(-work.batch // self.memory.layout.pp)
        return self.memory.layout.dp * rows / seconds

    def _step(
        self, tokens: int, weights: int, cache: int, operations: float, launches_per_layer: float,
        saved: int = 0,
    ) -> StepTime:  # fmt: skip
        assumed = self.assumed
        reading = (weights + cache) / self.device.bandwidth
        computing = operations / self.device.flops
        copying = self.memory.on_host / self.device.host_link
        launches = len(self.memory.stage) * launches_per_layer * assumed.between_launches
        exchanges = tuple(self.exchanges(tokens))
        busy = max(
            reading / assumed.bandwidth_share,
            computing / assumed.flops_share,
            copying / assumed.bandwidth_share,
        )
        return StepTime(
            tokens=tokens,
            weights_read=weights,
            cache_read=cache,
            cache_saved=saved,
            host_read=self.memory.on_host,
            operations=operations,
            floor=max(reading, computing, copying),
            memory_bound=reading >= computing,
            expected=busy + launches + sum(exchange.seconds for exchange in exchanges),
            launches=launches,
            exchanges=exchanges,
        )

    def weights_read(self, tokens: int) -> int:
        """Bytes of parameters that a step of so many tokens reads."""
        return sum(round(part.bytes * self._touched(part, tokens)) for part in self.memory.parts)

    def _touched(self, part: Part, tokens: int) -> float:
        """The share of a parameter that a step of so many tokens reads."""
        config = self.memory.config
        if part.path in ("embed.weight", "position_embed.weight") and not (
            part.path == "embed.weight" and config.tie_embeddings
        ):
            return 0.0  # one row per token
        if part.layer is not None and "experts" in part.axes:
            tokens *= self.memory.layout.expert_ranks
        return 1 - (1 - self._share_of_a_token(part)) ** tokens

    def _share_of_a_token(self, part: Part) -> float:
        """The share of a parameter that one token is multiplied with."""
        if part.layer is None or "experts" not in part.axes:
            return 1.0
        ffn = self.memory.config.layers[part.layer].ffn
        assert isinstance(ffn, ExpertsConfig), f"{part.path}: experts without a config"
        return ffn.experts_per_token / ffn.num_experts

    def operations(self, *, head: bool) -> float:
        """Operations of the matmuls with parameters, per token on one device."""
        config = self.memory.config
        head_path = "embed.weight" if config.tie_embeddings else "head.weight"
        total = 0.0
        for part in self.memory.parts:
            if part.layer is None and not (head and part.path == head_path):
                continue
            ranks = self.memory.layout.expert_ranks if "experts" in part.axes else 1
            total += 2 * part.weights * self._share_of_a_token(part) * ranks
        return total

    def attention(self, context: int) -> float:
        """Operations of attention scores and weighted values, per token on one device."""
        layers = [self.memory.config.layers[layer] for layer in self.memory.stage]
        mixers = [mixer for layer in layers for mixer in layer.mixers]
        return sum(
            mixer.operations / self.memory.layout.tp * min(context, mixer.window or context)
            for mixer in mixers
        )  # fmt: skip

    def exchanges(self, tokens: int) -> list[Exchange]:
        """What the devices send each other in a step of so many tokens."""
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
        if layout.ep > 1:
            found.append(self._to_experts_and_back(tokens))
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

    def _to_experts_and_back(self, tokens: int) -> Exchange:
        """Each device sends its tokens to the devices of their experts, and gets results back."""
        layout, assumed, config = self.memory.layout, self.assumed, self.memory.config
        experts = [config.layers[layer].ffn for layer in self.memory.stage]
        picks = [ffn.experts_per_token for ffn in experts if isinstance(ffn, ExpertsConfig)]
        each = -(-tokens // layout.tp) * config.hidden_size * EXCHANGED
        elsewhere = (layout.ep - 1) / layout.ep
        sent = sum(2 * round(each * elsewhere * min(pick, layout.ep)) for pick in picks)
        rate, latency, link = self.device.link, assumed.link_latency, self.device.link_name
        if layout.ep > layout.devices_a_host:
            rate, link = min(rate, assumed.network), f"{link} and network"
            latency += assumed.network_latency
        count = 2 * len(picks)
        seconds = sent / rate + count * latency
        return Exchange("tokens to experts and back", link, count, sent, seconds)

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
