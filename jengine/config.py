"""The engine's settings, one frozen struct a room, and the model's shape as data.

Built once by `engine/configure.py` from what the user gave and what the checkpoint says; every room
receives its own part only. No jax, no Hugging Face names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

CacheKind = Literal["full", "sliding", "latent", "recurrent"]
Activation = Literal["silu", "gelu_tanh"]
# `rms_one_plus` stores a norm's weight as its distance from one; `layer` subtracts the mean and
# has a bias.
NormKind = Literal["rms", "rms_one_plus", "layer"]


@dataclass(frozen=True)
class CacheSpec:
    """What one layer keeps of a token. Layers with equal specs share a cache group."""

    kind: CacheKind
    kv_heads: int
    head_dim: int
    window: int | None = None


@dataclass(frozen=True)
class CacheGroup:
    """Layers that share a block table: equal spec, one device array, layer first."""

    spec: CacheSpec
    layers: tuple[int, ...]


def cache_groups(layer_specs: tuple[CacheSpec, ...]) -> tuple[CacheGroup, ...]:
    """Group layers by spec, in order of first appearance."""
    by_spec: dict[CacheSpec, list[int]] = {}
    for layer, spec in enumerate(layer_specs):
        by_spec.setdefault(spec, []).append(layer)
    return tuple(CacheGroup(spec, tuple(layers)) for spec, layers in by_spec.items())


@dataclass(frozen=True)
class RopeConfig:
    """Rotary positions: the base and, for `llama3` and `linear`, how frequencies are stretched."""

    theta: float = 10000.0
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


@dataclass(frozen=True)
class MoeConfig:
    """Experts instead of one MLP, on these layers: how many, how large, and how a token picks."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    layers: tuple[int, ...]
    # Whether the weights of a token's experts are scaled to a sum of one.
    normalize_weights: bool = True


@dataclass(frozen=True)
class ModelConfig:
    """A decoder's shape, as the shared decoder body understands it."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    layers: tuple[CacheSpec, ...]
    norm_eps: float = 1e-6
    norm: NormKind = "rms"
    # Where attention and MLP are normalised: what goes in, what comes out, or both.
    norm_places: Literal["before", "after", "around"] = "before"
    # None: positions are learned vectors, added to the embedding.
    rope: RopeConfig | None = field(default_factory=RopeConfig)
    # What layers with a sliding window use instead of `rope`, where that differs.
    sliding_rope: RopeConfig | None = None
    activation: Activation = "silu"
    # `plain` has no gate, and biases.
    mlp: Literal["gated", "plain"] = "gated"
    moe: MoeConfig | None = None
    tie_embeddings: bool = False
    embed_scale: float = 1.0
    logit_soft_cap: float | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    # Queries and keys are normalised head by head, or all heads of a token as one vector.
    qk_norm: Literal["head", "whole"] | None = None
    attention_scale: float | None = None  # None: head_dim ** -0.5
    attention_soft_cap: float | None = None
    initializer_range: float = 0.02
    dtype: str = "float32"
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def groups(self) -> tuple[CacheGroup, ...]:
        """The cache groups of these layers."""
        return cache_groups(self.layers)

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """The different rotations of these layers."""
        found = dict.fromkeys(map(self.layer_rope, range(len(self.layers))))
        return tuple(rope for rope in found if rope is not None)

    def layer_rope(self, layer: int) -> RopeConfig | None:
        """The rotation of one layer."""
        slides = self.layers[layer].window is not None
        return self.sliding_rope if slides and self.sliding_rope is not None else self.rope

    def layer_moe(self, layer: int) -> MoeConfig | None:
        """The experts of one layer, or None where it has one MLP."""
        return self.moe if self.moe is not None and layer in self.moe.layers else None


@dataclass(frozen=True)
class CacheConfig:
    """The paged cache: how large a block is and how many there are in each group."""

    groups: tuple[CacheGroup, ...]
    block_size: int
    num_blocks: tuple[int, ...]
    enable_prefix_caching: bool = True


@dataclass(frozen=True)
class ScheduleConfig:
    """Who runs: limits of one step and the order of requests."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    policy: Literal["fcfs", "priority"] = "fcfs"
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    # A prefill chunk fills whole tiles of this many tokens in the step; the budget counts tiles.
    prefill_tile: int = 32
    # Blocks kept free when a waiting request is admitted while others run.
    watermark_blocks: int = 0
    # Decode steps that one plan may run at most, where nobody waits.
    num_scheduler_steps: int = 1

    @property
    def largest_chunk(self) -> int:
        """The most tokens of one request that a step can prefill: whole tiles."""
        return self.max_num_batched_tokens // self.prefill_tile * self.prefill_tile
