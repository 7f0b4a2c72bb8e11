"""Communication of a step between devices: bytes and seconds, none of it overlapped with compute.

In: Memory and a device. Out: one Exchange for each kind of communication.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp

from jengine.capacity.accelerators import Accelerator
from jengine.capacity.assumptions import Assumptions
from jengine.capacity.device_memory import Memory
from jengine.config import AttentionConfig, ExpertsConfig, LatentConfig

FLOAT32 = 4
EXCHANGED = 2  # bytes of a number that tokens have on their way to experts and back


@dataclass(frozen=True)
class CostedExchange:
    """One kind of collective or transfer in a step."""

    what: str
    link: str
    count: int
    bytes: int  # sent by one device in all of them
    seconds: float


@dataclass(frozen=True)
class Exchanges:
    """Communication of a model under a layout."""

    memory: Memory
    device: Accelerator
    assumed: Assumptions

    def of_step(self, tokens: int) -> list[CostedExchange]:
        """All communication of a step of `tokens` tokens."""
        layout = self.memory.layout
        own = layout.own_tokens(tokens)
        hidden = own * self.memory.config.hidden_size * FLOAT32
        found = []
        if layout.tp > 1:
            # Two all-reduces per layer and one for the embedding, as the compiled program has them.
            count = 2 * len(self.memory.stage) + 1
            sums = hidden // 2 if self.memory.config.dtype == "bfloat16" else hidden
            found.append(
                self._all_reduces("all-reduces within a layer", count, sums, layout.tp, True)
            )
            found.append(self._logits(tokens))
        if layout.dcp > 1:
            found.append(self._of_divided_caches(own))
        if layout.pcp > 1:
            found.append(self._to_all_caches(own))
        if layout.ep > 1:
            found.append(self._to_experts_and_back(tokens))
        if layout.pp > 1:
            found += [self._to_next_stage(hidden), self._last_results(hidden)]
        return found

    def _all_reduces(
        self, what: str, count: int, size: int, devices: int, tensor: bool
    ) -> CostedExchange:
        """Ring all-reduces. A ring across hosts uses all network ports of each host."""
        layout = self.memory.layout
        hosts = layout.tensor_hosts if tensor else 1 + layout.stages_cross_hosts
        sent = round(2 * (devices - 1) / devices * size)
        ports = layout.devices_a_host if tensor else 1
        return self._sent(what, count, count * sent, ports if hosts > 1 else 0)

    def _logits(self, tokens: int) -> CostedExchange:
        """The all-gather of sampled tokens' logits; greedy decoding alone sends less."""
        layout, config = self.memory.layout, self.memory.config
        rows = min(tokens, self.memory.schedule.max_num_seqs)
        sent = rows * config.vocab_size * FLOAT32 * (layout.tp - 1) // layout.tp
        ports = layout.devices_a_host if layout.tensor_hosts > 1 else 0
        return self._sent("all-gather of logits", 1, sent, ports)

    def _sent(self, what: str, count: int, sent: int, ports: int) -> CostedExchange:
        """An exchange in which each device sends `sent` bytes, through `ports` network ports; 0:
        all devices share a host."""
        assumed, rate, link = self.assumed, self.device.link, self.device.link_name
        latency = assumed.link_latency
        if ports:
            rate, link = min(rate, ports * assumed.network), f"{link} and network"
            latency += assumed.network_latency
        return CostedExchange(what, link, count, sent, sent / rate + count * latency)

    def _of_divided_caches(self, tokens: int) -> CostedExchange:
        """Decode context parallelism: all-gather of queries, then reduction of the partial outputs
        by log-sum-exp."""
        layout, numbers = self.memory.layout, itemsize(self.memory.config.dtype)
        sent, layers, others = 0, 0, layout.dcp - 1
        for layer in self.memory.stage:
            for mixer in self.memory.config.layers[layer].mixers:
                if not isinstance(mixer, AttentionConfig | LatentConfig) or mixer.window:
                    continue
                queries, results = widths(mixer)
                heads = tokens * mixer.num_heads * others // layout.tp  # of a device, for others
                sent += heads * (queries * numbers + (results + layout.dcp) * FLOAT32)
                layers += 1
        ports = layout.devices_a_host if layout.dcp > layout.devices_a_host else 0
        return self._sent("gathers and sums of divided caches", 3 * layers, sent, ports)

    def _to_all_caches(self, tokens: int) -> CostedExchange:
        """Prefill context parallelism: all-gather of keys and values, and of the hidden states for
        the logits."""
        layout, config, ways = self.memory.layout, self.memory.config, self.memory.placement.ways
        count, elements = 1, 0
        for group, _ in self.memory.groups:
            spec, layers = group.spec, len(group.layers)
            heads = spec.kv_heads // (1 if spec.shares_heads else ways("kv_heads"))
            elements += spec.vectors * layers * heads * spec.head_dim
            count += spec.vectors * layers
        rows = min(tokens * layout.pcp, self.memory.schedule.max_num_seqs)
        last = 2 * rows * config.hidden_size * FLOAT32 // layout.pcp
        sent = (layout.pcp - 1) * (tokens * elements * itemsize(config.dtype) + last)
        ports = layout.tp if layout.tp * layout.pcp > layout.devices_a_host else 0
        return self._sent("gathers of keys and values", count, sent, ports)

    def _to_experts_and_back(self, tokens: int) -> CostedExchange:
        """Expert parallelism: all-to-all of tokens to their experts, and back."""
        layout, config = self.memory.layout, self.memory.config
        experts = [config.layers[layer].ffn for layer in self.memory.stage]
        picks = [ffn.experts_per_token for ffn in experts if isinstance(ffn, ExpertsConfig)]
        each = -(-tokens // layout.tp) * config.hidden_size * EXCHANGED
        elsewhere = (layout.ep - 1) / layout.ep
        each_pick = each * elsewhere * self.assumed.expert_load  # at the busiest device
        sent = sum(2 * round(each_pick * min(pick, layout.ep)) for pick in picks)
        ports = 1 if layout.ep > layout.devices_a_host else 0
        return self._sent("tokens to experts and back", 2 * len(picks), sent, ports)

    def _to_next_stage(self, size: int) -> CostedExchange:
        """Pipeline parallelism: each device sends hidden states to its rank in the next stage."""
        assumed, across = self.assumed, self.memory.layout.stages_cross_hosts
        rate = assumed.network if across else self.device.link
        latency = assumed.network_latency if across else assumed.link_latency
        link = "network" if across else self.device.link_name
        return CostedExchange("to the next stage", link, 1, size, size / rate + latency)

    def _last_results(self, size: int) -> CostedExchange:
        """Broadcast of the last stage's hidden states to all stages, which share the head."""
        return self._all_reduces(
            "last stage's results to all", 1, size, self.memory.layout.pp, False
        )


def widths(mixer: AttentionConfig | LatentConfig) -> tuple[int, int]:
    """Per-head widths of q and of the attention output, as seen by the cache (latent attention:
    those of the absorbed form)."""
    if isinstance(mixer, LatentConfig):
        return mixer.kv_rank + mixer.rope_dim, mixer.kv_rank
    return mixer.head_dim, mixer.head_dim


def itemsize(dtype: str) -> int:
    return jnp.dtype(dtype).itemsize
