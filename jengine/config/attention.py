"""Attention configuration: rotary embedding, heads, masks, and latent attention."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from jengine.config.cache import CacheKind, CacheSpec


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding: base, and how frequencies are scaled unless `default`."""

    theta: float = 10000.0
    kind: Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"] = (
        "default"
    )
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    # yarn: turns within the original length above which a pair keeps its frequency, and below
    # which it is stretched in full; whether the pairs between are counted in whole numbers.
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0  # cos and sin are multiplied by it
    # yarn: what `attention_factor` was computed from, if it was not given. The second one also
    # scales the scores of latent attention.
    mscale: float | None = None
    mscale_all_dim: float | None = None
    # `dynamic` stretches the base as far as the longest sequence needs beyond the original length.
    # longrope: how many times longer the wavelength of each pair is, where no sequence is longer
    # than the original length, and where some may be.
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    # proportional: how many pairs of a head are rotated, the first ones, as in whole heads.
    pairs: int = 0
    # How many dimensions of a head are rotated, the first ones in checkpoints. None: all.
    rotated: int | None = None
    # How many pairs of a head are rotated by the frame, the row and the column of a token in an
    # image, one after the other. Empty: every pair by the one position of its token.
    sections: tuple[int, ...] = ()
    interleaved: bool = False  # whether pairs take turns, as far as rows and columns have any

    def mrope_axes(self, pairs: int) -> tuple[int, ...]:
        """Which of the three position axes (MRoPE) rotates each pair."""
        if not self.interleaved:
            return tuple(plane for plane, count in enumerate(self.sections) for _ in range(count))
        found = [0] * pairs
        for plane in (1, 2):
            for pair in range(plane, min(3 * self.sections[plane], pairs), 3):
                found[pair] = plane
        return tuple(found)

    @property
    def stretch(self) -> float:
        """Factor by which sequences may exceed `max_position`; other scaling types are published
        with a `max_position` that includes it."""
        return self.factor if self.kind in ("linear", "dynamic") else 1.0

    @property
    def score_scale(self) -> float:
        """Additional score scale of latent attention under YaRN (mscale)."""
        return (1.0 + 0.1 * (self.mscale_all_dim or 0.0) * math.log(self.factor)) ** 2


@dataclass(frozen=True)
class AlibiConfig:
    """ALiBi: per-head slopes 2 ** (-largest * k / heads) for head k of 2 ** n heads."""

    largest: float = 8.0
    # Whether what slopes add is scaled as attention scores are.
    is_scaled: bool = False


@dataclass(frozen=True)
class DistanceBiasConfig:
    """Relative position biases (T5): learned per head and distance bucket.

    Half of the buckets hold one distance each, the rest growing ranges up to `max_distance`.
    Bidirectional attention uses half of the buckets for later tokens.
    """

    buckets: int = 32
    max_distance: int = 128
    # Whether the layer has such numbers; otherwise it takes those of the last one that has.
    is_own: bool = True


@dataclass(frozen=True)
class AttentionConfig:
    """Attention of one layer: its heads, what a query may see, and how scores are formed."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    # How many tokens a query attends to, itself included. None: all up to itself.
    window: int | None = None
    # Whether it attends within chunks of so many tokens instead: to those before it in its own.
    in_chunks: bool = False
    # None: queries and keys are not rotated.
    rope: RopeConfig | None = field(default_factory=RopeConfig)
    alibi: AlibiConfig | None = None
    distance_bias: DistanceBiasConfig | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    # RMS norm of queries and keys: of each head alone, or of all heads of a token as one vector;
    # `unit` is that of each head, without weights. `behind_rotation` is that of each head, after
    # its rotation, and `layer` a layer norm of each head, which has weights of its own.
    qk_norm: Literal["head", "whole", "unit", "behind_rotation", "layer"] | None = None
    out_norm: bool = False  # whether what all heads mixed is normalised before the output matmul
    value_norm: bool = False  # whether values have an RMS norm of each head, without weights
    keys_are_values: bool = False  # whether values are the keys before norm and rotation
    # The earlier layer whose keys and values it reads, having none of its own.
    source: int | None = None
    is_source: bool = False  # whether a later layer reads its keys and values
    scale: float | None = None  # None: head_dim ** -0.5
    clip: float | None = None  # largest size of what the QKV matmul makes
    soft_cap: float | None = None
    # Whether each query head has one more score, a parameter, whose value vector is zero.
    sinks: bool = False
    # Whether each head's result is multiplied by the sigmoid of as many numbers, which are made
    # together with its query.
    gated: bool = False
    # Queries are multiplied by 1 + growth * log(1 + the number of whole `steps` before or at the
    # next position): (steps, growth).
    temperature: tuple[int, float] | None = None
    # Whether a query attends to later tokens as well; with a window, to those less than so many
    # tokens before or after it. Then nothing is cached, and prompts run whole.
    bidirectional: bool = False
    # Whether tokens of an image attend to later ones of it, where images are read so at all.
    sees_ahead: bool = True

    @property
    def group(self) -> int:
        """Query heads that share one head of keys and values."""
        return self.num_heads // self.num_kv_heads

    @property
    def cache(self) -> CacheSpec:
        """KV cache spec of this layer."""
        if self.bidirectional:
            return CacheSpec("whole", self.num_kv_heads, self.head_dim)
        windowed: CacheKind = "chunked" if self.in_chunks else "sliding"
        kind: CacheKind = "full" if self.window is None else windowed
        return CacheSpec(kind, self.num_kv_heads, self.head_dim, self.window)

    @property
    def operations(self) -> int:
        """FLOPs per token and attended token."""
        return 4 * self.num_heads * self.head_dim

    def weights(self, hidden: int) -> int:
        """Number of weights."""
        kept = 0 if self.source is not None else 2 - self.keys_are_values
        heads = (2 + self.gated) * self.num_heads + kept * self.num_kv_heads
        return hidden * self.head_dim * heads

    @property
    def largest_activation(self) -> int:
        """Largest per-token activation besides hidden states, sharded by head."""
        return 0  # smaller than those of the feed-forward block


@dataclass(frozen=True)
class LatentConfig:
    """Latent attention (MLA): keys and values of all heads derive from one compressed vector per
    token, which is cached with a rotated key shared by all heads. Per head, q and k have `nope_dim`
    unrotated and `rope_dim` rotated lanes."""

    num_heads: int
    kv_rank: int  # length of the vector
    nope_dim: int
    rope_dim: int
    value_dim: int
    # Length of the vector that queries are made of; None: they are made of the hidden state.
    query_rank: int | None = None
    window: int | None = None
    rope: RopeConfig = field(default_factory=RopeConfig)
    # Whether neighbouring lanes are rotated as a pair; otherwise lanes of the two halves.
    interleaved: bool = True
    bias: bool = False  # of the matmuls that shorten, and of the output
    norm_eps: float = 1e-6  # of the short vectors' norms

    @property
    def group(self) -> int:
        """Query heads per cached entry."""
        return self.num_heads

    @property
    def query_dim(self) -> int:
        return self.nope_dim + self.rope_dim

    @property
    def scale(self) -> float:
        """Score scale."""
        return self.query_dim**-0.5 * self.rope.score_scale

    @property
    def cache(self) -> CacheSpec:
        """KV cache spec of this layer."""
        return CacheSpec("latent", 1, self.kv_rank + self.rope_dim, self.window)

    @property
    def operations(self) -> int:
        """FLOPs per decoded token and attended token."""
        return 2 * self.num_heads * (2 * self.kv_rank + self.rope_dim)

    def weights(self, hidden: int) -> int:
        """Number of weights."""
        queries = self.num_heads * self.query_dim
        rank = self.query_rank
        made = hidden * queries if rank is None else rank * (hidden + queries)
        shortened = hidden * (self.kv_rank + self.rope_dim)
        up = self.kv_rank * self.num_heads * (self.nope_dim + self.value_dim)
        return made + shortened + up + self.num_heads * self.value_dim * hidden

    @property
    def largest_activation(self) -> int:
        """Largest per-token activation besides hidden states, sharded by head."""
        return self.num_heads * (self.kv_rank + self.rope_dim)
