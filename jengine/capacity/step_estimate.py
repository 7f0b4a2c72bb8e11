"""Step time, as a floor and as an estimate: bytes and operations over the rates of a device.

In: Memory, a device and the work. Out: Timing, in seconds. No step was timed: assumptions.py has
every number that is neither a shape nor from a data sheet.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from jengine.capacity.accelerators import Accelerator
from jengine.capacity.assumptions import Assumptions
from jengine.capacity.device_memory import Memory, ParameterShard
from jengine.capacity.exchanges import CostedExchange, Exchanges
from jengine.config import ExpertsConfig


@dataclass(frozen=True)
class StepWork:
    """The load of one replica."""

    batch: int  # requests that decode
    context: int  # tokens of each of them, on average
    prefill: int  # prompt tokens of a prefill step
    shared: int = 0  # leading tokens that all of them have in common


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
    exchanges: tuple[CostedExchange, ...]  # none is assumed to overlap with anything


@dataclass(frozen=True)
class Timing:
    """Steps of a model on devices."""

    memory: Memory
    device: Accelerator
    assumed: Assumptions

    def decode(self, work: StepWork) -> StepTime:
        """Time of a decode step. The batch is divided among as many plans as there are stages."""
        rows = -(-work.batch // self.memory.layout.pp)
        own = self.memory.layout.own_tokens(rows)
        read = self.weights_read(own)
        saved = self.memory.read_once(own, min(work.shared, work.context - 1))
        cache = own * self.memory.read_bytes(work.context) - saved
        operations = own * (self.operations() + self.attention(work.context))
        operations += rows * self.head_operations()
        return self._step(rows, read, cache, operations, self.assumed.decode_launches, saved)

    def prefill(self, work: StepWork) -> StepTime:
        """A prefill-only step, from the middle of prompts of the context's length."""
        tokens = work.prefill
        own = self.memory.layout.own_tokens(tokens)
        read = self.weights_read(own)
        prompts = -(-tokens // work.context)
        operations = own * (self.operations() + self.attention(work.context // 2))
        cache = prompts * self.memory.read_bytes(work.context)
        return self._step(tokens, read, cache, operations, self.assumed.prefill_launches)

    def tokens_a_second(self, work: StepWork, seconds: float) -> float:
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
        """Expected bytes of parameters that a step with this many tokens reads."""
        spread = self.memory.layout.expert_ranks * self.assumed.expert_load
        return sum(
            round(size * (1 - (1 - share) ** (tokens * (spread if is_expert else 1))))
            for (share, is_expert), size in self._bytes_by_share.items()
        )

    @cached_property
    def _bytes_by_share(self) -> dict[tuple[float, bool], int]:
        """Bytes of parameters by the share that a token is multiplied with, and whether tokens of
        all replicas meet there."""
        found: dict[tuple[float, bool], int] = {}
        for part in self.memory.parts:
            one_row_a_token = part.path == "position_embed.weight" or (
                part.path == "embed.weight" and not self.memory.config.tie_embeddings
            )
            if not one_row_a_token:
                key = (
                    self._share_of_a_token(part),
                    part.layer is not None and "experts" in part.axes,
                )
                found[key] = found.get(key, 0) + part.bytes
        return found

    def _share_of_a_token(self, part: ParameterShard) -> float:
        """The share of a parameter that one token is multiplied with."""
        if part.layer is None or "experts" not in part.axes:
            return 1.0
        ffn = self.memory.config.layers[part.layer].ffn
        assert isinstance(ffn, ExpertsConfig), f"{part.path}: experts without a config"
        return ffn.experts_per_token / ffn.num_experts

    def operations(self) -> float:
        """Operations of the matmuls of layers, per token on one device."""
        total = 0.0
        for part in self.memory.parts:
            if part.layer is not None:
                is_shared = "experts" in part.axes
                load = self.memory.layout.expert_ranks * self.assumed.expert_load
                share = self._share_of_a_token(part) * (load if is_shared else 1)
                total += 2 * part.weights * share
        return total

    def head_operations(self) -> float:
        """Operations of the head, per row of logits on one device."""
        path = "embed.weight" if self.memory.config.tie_embeddings else "head.weight"
        return sum(2.0 * part.weights for part in self.memory.parts if part.path == path)

    def attention(self, context: int) -> float:
        """Operations of attention scores and weighted values, per token on one device."""
        layers = [self.memory.config.layers[layer] for layer in self.memory.stage]
        mixers = [mixer for layer in layers for mixer in layer.mixers]
        return sum(
            mixer.operations / self.memory.layout.tp * min(context, mixer.window or context)
            for mixer in mixers
        )  # fmt: skip

    def exchanges(self, tokens: int) -> list[CostedExchange]:
        """Collectives and transfers between devices in such a step."""
        return Exchanges(self.memory, self.device, self.assumed).of_step(tokens)
