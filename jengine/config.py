"""The engine's settings, one frozen struct per room, and the model's shape as data.

Built once by `assembly/` from the user's arguments and the checkpoint; each room receives only its
own part. No jax, no Hugging Face names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from jengine.vllm_names import missing_name
from jengine.weight_formats import Quantization

CacheKind = Literal["full", "sliding", "latent", "recurrent"]
# What `kv_cache_dtype=` asks for: codes of one byte with a scale per head of a token, or None.
CACHE_CODES: dict[str, str | None] = {
    "auto": None, "int8": "int8", "int8_per_token_head": "int8",
    "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_per_token_head": "fp8",
}  # fmt: skip
# `clamped_swiglu` is a gate of its own: it takes both halves of a gated MLP.
Activation = Literal["silu", "gelu_tanh", "gelu", "relu", "relu_squared", "clamped_swiglu"]
# `one_plus` stores a norm's weight as its distance from one; `layer` subtracts the mean and has a
# bias, unless it says otherwise.
NormKind = Literal["rms", "rms_one_plus", "layer", "layer_one_plus", "layer_no_bias"]


@dataclass(frozen=True)
class CacheSpec:
    """What one layer keeps of a token. Layers with equal specs share a cache group."""

    kind: CacheKind
    # A latent cache has one vector per token, which all heads share and every device holds whole.
    kv_heads: int
    head_dim: int
    window: int | None = None

    @property
    def vectors(self) -> int:
        """Vectors of a head and token: its key and its value, or the one that stands for both."""
        return 1 if self.kind == "latent" else 2

    @property
    def keeps_all(self) -> bool:
        """Whether every token of a running request is kept until it ends."""
        return self.kind in ("full", "latent") and self.window is None


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
    """Rotary positions: the base and, but for `default`, how frequencies are stretched."""

    theta: float = 10000.0
    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
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
    # How many dimensions of a head are rotated, the first ones in checkpoints. None: all.
    rotated: int | None = None

    @property
    def score_scale(self) -> float:
        """What the scores of latent attention are multiplied by, in addition."""
        return (1.0 + 0.1 * (self.mscale_all_dim or 0.0) * math.log(self.factor)) ** 2


@dataclass(frozen=True)
class AttentionConfig:
    """Attention of one layer: its heads, what a query may see, and how scores are formed."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    # How many tokens a query attends to, itself included. None: all up to itself.
    window: int | None = None
    # None: queries and keys are not rotated.
    rope: RopeConfig | None = field(default_factory=RopeConfig)
    qkv_bias: bool = False
    output_bias: bool = False
    # RMS norm of queries and keys: of each head alone, or of all heads of a token as one vector;
    # `unit` is that of each head, without weights.
    qk_norm: Literal["head", "whole", "unit"] | None = None
    scale: float | None = None  # None: head_dim ** -0.5
    soft_cap: float | None = None
    # Whether each query head has one more score, a parameter, whose value vector is zero.
    sinks: bool = False
    # Queries are multiplied by 1 + growth * log(1 + the number of whole `steps` before or at the
    # next position): (steps, growth).
    temperature: tuple[int, float] | None = None

    @property
    def group(self) -> int:
        """Query heads that share one head of keys and values."""
        return self.num_heads // self.num_kv_heads

    @property
    def cache(self) -> CacheSpec:
        """What this layer keeps of a token."""
        kind: CacheKind = "full" if self.window is None else "sliding"
        return CacheSpec(kind, self.num_kv_heads, self.head_dim, self.window)

    @property
    def operations(self) -> int:
        """Operations of one token for each token that it attends to."""
        return 4 * self.num_heads * self.head_dim

    def weights(self, hidden: int) -> int:
        """Elements of the matrices of a layer."""
        return hidden * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)

    @property
    def largest_activation(self) -> int:
        """Numbers of a token, sharded by head, in the largest array beside hidden states."""
        return 0  # smaller than those of the feed-forward block


@dataclass(frozen=True)
class LatentConfig:
    """Latent attention (MLA): keys and values of all heads are made of one short vector per token.

    That vector is cached, with one rotated key that all heads share. A head's query and key have
    `nope_dim` lanes that are not rotated, then `rope_dim` that are.
    """

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
        """Query heads that share what is cached."""
        return self.num_heads

    @property
    def query_dim(self) -> int:
        """Length of a head's query and key."""
        return self.nope_dim + self.rope_dim

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return self.query_dim**-0.5 * self.rope.score_scale

    @property
    def cache(self) -> CacheSpec:
        """What this layer keeps of a token."""
        return CacheSpec("latent", 1, self.kv_rank + self.rope_dim, self.window)

    @property
    def operations(self) -> int:
        """Operations of one decoded token for each token that it attends to."""
        return 2 * self.num_heads * (2 * self.kv_rank + self.rope_dim)

    def weights(self, hidden: int) -> int:
        """Elements of the matrices of a layer."""
        queries = self.num_heads * self.query_dim
        rank = self.query_rank
        made = hidden * queries if rank is None else rank * (hidden + queries)
        shortened = hidden * (self.kv_rank + self.rope_dim)
        up = self.kv_rank * self.num_heads * (self.nope_dim + self.value_dim)
        return made + shortened + up + self.num_heads * self.value_dim * hidden

    @property
    def largest_activation(self) -> int:
        """Numbers of a token, sharded by head, in the largest array beside hidden states."""
        return self.num_heads * (self.kv_rank + self.rope_dim)


@dataclass(frozen=True)
class MlpConfig:
    """A dense feed-forward block: gate, up and down, or up and down alone."""

    intermediate_size: int
    activation: Activation = "silu"
    gated: bool = True
    biases: bool = False

    @property
    def active_size(self) -> int:
        """The intermediate numbers that one token takes."""
        return self.intermediate_size


@dataclass(frozen=True)
class RoutingConfig:
    """How a token picks its experts: the scores of a router's logits, the choice, the weights."""

    scores: Literal["softmax", "sigmoid"] = "softmax"
    # Whether the weights of a token's experts are scaled to a sum of one.
    normalize: bool = True
    scale: float = 1.0  # of the weights, after that
    # Whether each expert has a parameter that is added to its score for the choice alone.
    choice_bias: bool = False
    # Experts are chosen from the best `top_groups` of equal groups. A group is as good as its best
    # expert, or as the sum of its best two.
    groups: int = 1
    top_groups: int = 1
    group_score: Literal["best", "best_two"] = "best_two"
    # Whether experts read the token times its weight, instead of their outputs being weighted.
    weighs_inputs: bool = False
    logits_bias: bool = False
    # Whether the router is float32 in models of any dtype.
    exact: bool = False


@dataclass(frozen=True)
class ExpertsConfig:
    """A mixture of gated MLPs: how many, how large, and how a token picks among them."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int  # of one expert
    activation: Activation = "silu"
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    biases: bool = False  # of the experts
    # A gated MLP of this size takes every token as well. 0: there is none.
    shared_size: int = 0
    # Whether that MLP's output is multiplied by the sigmoid of one more logit.
    shared_gate: bool = False

    @property
    def active_size(self) -> int:
        """The intermediate numbers that one token takes."""
        return self.experts_per_token * self.intermediate_size + self.shared_size


# What may stand in the two halves of a layer. Other kinds are added to these unions.
MixerConfig = AttentionConfig | LatentConfig
FfnConfig = MlpConfig | ExpertsConfig


@dataclass(frozen=True)
class LayerConfig:
    """One decoder layer: what mixes tokens, then what transforms each of them alone."""

    mixer: MixerConfig
    ffn: FfnConfig


@dataclass(frozen=True)
class ModelConfig:
    """A model's shape: one LayerConfig per layer, and what surrounds the layers."""

    architecture: str
    vocab_size: int
    hidden_size: int
    max_position: int
    layers: tuple[LayerConfig, ...]
    norm_eps: float = 1e-6
    norm: NormKind = "rms"
    # Which sides of attention and feed-forward block are normalised: input, output, or both.
    norm_places: Literal["before", "after", "around"] = "before"
    # `parallel`: attention and feed-forward block both read the layer's input, each after its own
    # norm, or both after one.
    block: Literal["serial", "parallel", "parallel_one_norm"] = "serial"
    # What attention and feed-forward block add to the residual stream is multiplied by this.
    residual_scale: float = 1.0
    # Whether a learned vector for its position is added to each token's embedding.
    learned_positions: bool = False
    position_offset: int = 0  # rows of that table before the first position's
    tie_embeddings: bool = False
    head_bias: bool = False
    embed_scale: float = 1.0
    logit_scale: float = 1.0
    logit_soft_cap: float | None = None
    initializer_range: float = 0.02
    dtype: str = "float32"
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    # None: all weights are of `dtype`.
    quantization: Quantization | None = None

    @property
    def cache_specs(self) -> tuple[CacheSpec, ...]:
        """What each layer keeps of a token."""
        return tuple(layer.mixer.cache for layer in self.layers)

    @property
    def groups(self) -> tuple[CacheGroup, ...]:
        """The cache groups of these layers."""
        return cache_groups(self.cache_specs)

    @property
    def has_experts(self) -> bool:
        """Whether some layer is a mixture of experts."""
        return any(isinstance(layer.ffn, ExpertsConfig) for layer in self.layers)


@dataclass(frozen=True)
class CacheConfig:
    """The paged cache: how large a block is and how many there are in each group."""

    groups: tuple[CacheGroup, ...]
    block_size: int
    num_blocks: tuple[int, ...]
    enable_prefix_caching: bool = True
    # Share of the blocks whose stay in the cache is measured.
    measured_blocks: float = 0.0
    # What keys and values are stored as: content under another name is other content.
    stored_as: str = ""
    # Positions after those that a plan runs for which a request holds blocks as well: the step's
    # own guesses at tokens are run there.
    lookahead: int = 0


@dataclass(frozen=True)
class SpeculativeConfig:
    """Guessing several tokens of a row for one step. Names and defaults are vLLM's; it is made and
    checked by `speculative.config`."""

    method: str
    num_speculative_tokens: int  # the most drafts of a row
    # n-gram: sizes of the n-grams to look up.
    prompt_lookup_min: int = 5
    prompt_lookup_max: int = 5
    # Suffix decoding: the longest match, requests whose answers are kept, drafts per token of the
    # match, and the least estimated probability of a draft.
    suffix_decoding_max_tree_depth: int = 24
    suffix_decoding_max_cached_requests: int = 10000
    suffix_decoding_max_spec_factor: float = 1.0
    suffix_decoding_min_token_prob: float = 0.1
    # Whether a row's drafts become fewer, or none, while few of them are accepted. Not in vLLM.
    adaptive: bool = True
    model: str | None = None  # the folder of the model that guesses
    # What one guess of it costs, as a share of a step that gives one token.
    guess_cost: float = 0.0

    @property
    def on_device(self) -> bool:
        """Whether steps make the guesses for the steps after them."""
        return self.model is not None

    @property
    def lookahead(self) -> int:
        """Positions after a row's last token at which a step writes keys and values of guesses."""
        return self.num_speculative_tokens if self.method in CACHING_METHODS else 0


# Methods whose guesses are made with a KV cache of their own.
CACHING_METHODS = ("draft_model", "eagle")


# With drafts, a step has room for so many decode rows even if fewer requests run at once. Beyond
# that a token more costs a step nearly as much as the first one, and drafts gain little.
DRAFTED_ROWS = 128


def decode_rows(rows: int, most_drafts: int) -> int:
    """The most tokens that the decodes of a step run, with so many rows and drafts of each."""
    return max(rows, min(rows * (1 + most_drafts), DRAFTED_ROWS))


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
    # Tiles of a chunk that attention takes as one.
    joined_tiles: int = 1
    decode_sizes: tuple[int, ...] = ()  # compiled numbers of decode tokens
    # Compiled numbers of prefill tokens: the last prompt of a step may be cut there.
    prefill_sizes: tuple[int, ...] = ()
    full_step: int = 0  # tokens below which a step takes no less time
    # Most decode steps of one plan, while no request waits.
    num_scheduler_steps: int = 1
    # Requests with penalties, biases or masks that may run at once: the sampler's state for each
    # is as large as the vocabulary. None: as many as run.
    max_adjusted_seqs: int | None = None
    # Deterministic mode without batch-invariant kernels: every token runs in one shape.
    one_segment: bool = False
    # A sampled id must be below this; a request that gets another one ends with an error.
    vocab_size: int = 2**31
    speculative: SpeculativeConfig | None = None  # None: no drafts

    @property
    def most_drafts(self) -> int:
        """The most drafts of a row."""
        return 0 if self.speculative is None else self.speculative.num_speculative_tokens

    @property
    def max_decode_rows(self) -> int:
        """The most tokens that all decodes of a step run, drafts included."""
        return decode_rows(self.max_num_seqs, self.most_drafts)

    @property
    def sampler_rows(self) -> int:
        """Rows of the sampler's pool."""
        return min(self.max_adjusted_seqs or self.max_num_seqs, self.max_num_seqs)

    @property
    def largest_chunk(self) -> int:
        """The most tokens of one request that a step can prefill: whole tiles."""
        return self.max_num_batched_tokens // self.prefill_tile * self.prefill_tile


if not TYPE_CHECKING:  # a checker would take every name for a name of this module

    def __getattr__(name: str) -> Any:
        raise missing_name(__name__, name)
