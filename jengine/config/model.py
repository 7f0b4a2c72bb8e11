"""A model's shape: its layers, and what surrounds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jengine.config.attention import AttentionConfig, LatentConfig, RopeConfig
from jengine.config.cache import CacheGroup, CacheSpec, cache_groups
from jengine.config.layers import (
    Activation,
    ExpertsConfig,
    LayerConfig,
    LayerInputsConfig,
    SingleMixer,
)
from jengine.config.pooling import PoolingConfig
from jengine.config.speech import SpeechConfig
from jengine.config.text_encoder import TextEncoderConfig, TextStackConfig
from jengine.config.vision import VisionConfig
from jengine.weight_formats import Quantization

# `one_plus` stores a norm's weight as its distance from one; `layer` subtracts the mean and has a
# bias, unless it says otherwise; `bare` has no parameters.
NormKind = Literal[
    "rms", "rms_one_plus", "rms_bare", "layer", "layer_one_plus", "layer_no_bias", "layer_bare"
]  # fmt: skip


# Where a model has norms -> the modules of a layer. `sums`: the one after is given the sum.
PLACES: dict[str, tuple[str, ...]] = {
    "before": ("before",),
    "after": ("after",),
    "around": ("before", "after"),
    "sums": ("after",),
}


@dataclass(frozen=True)
class HeadTransformConfig:
    """A matmul, an activation and a norm of the model's kind before the output head."""

    activation: Activation
    bias: bool


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
    # Which sides of attention and feed-forward block are normalised: input, output, or
    # both; or the sum of input and output, which takes the place of a norm at the end.
    norm_places: Literal["before", "after", "around", "sums"] = "before"
    # `parallel`: attention and feed-forward block both read the layer's input, each after its own
    # norm, or both after one.
    block: Literal["serial", "parallel", "parallel_one_norm"] = "serial"
    # What attention and feed-forward block add to the residual stream is multiplied by this.
    residual_scale: float = 1.0
    layer_inputs: LayerInputsConfig | None = None  # what each layer is given of each token
    layer_factors: bool = False  # whether what leaves a layer is multiplied by a parameter
    # Whether a learned vector for its position is added to each token's embedding.
    learned_positions: bool = False
    # Whether `max_position` counts what linear rotation adds, as only Gemma 3's does.
    counts_stretch: bool = False
    embed_norm: bool = False  # whether the input of the first layer is normalised
    token_types: int = 0  # kinds of tokens whose embeddings are added; 0: none
    position_offset: int = 0  # rows of that table before the first position's
    tie_embeddings: bool = False
    head_bias: bool = False
    head_transform: HeadTransformConfig | None = None
    embed_scale: float = 1.0
    logit_scale: float = 1.0
    logit_soft_cap: float | None = None
    initializer_range: float = 0.02
    dtype: str = "float32"
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    # None: all weights are of `dtype`.
    quantization: Quantization | None = None
    vision: VisionConfig | None = None  # what makes embeddings of images. None: prompts have none
    speech: SpeechConfig | None = None  # what encodes audio. None: prompts have none
    # What encodes texts that layers attend to. None: a prompt has one text.
    text_encoder: TextEncoderConfig | None = None
    text_stack: TextStackConfig | None = None  # the same, as layers like its own
    # What it makes of hidden states in place of logits. None: it writes, so it has an output head.
    pooling: PoolingConfig | None = None

    @property
    def layer_specs(self) -> tuple[tuple[CacheSpec, ...], ...]:
        """Cache specs of each layer; empty if it reads another layer's cache."""
        return tuple(
            tuple(mixer.cache for mixer in layer.mixers if source_of(mixer) is None)
            for layer in self.layers
        )

    @property
    def cache_specs(self) -> tuple[CacheSpec, ...]:
        """`layer_specs`, flattened."""
        return tuple(spec for specs in self.layer_specs for spec in specs)

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """Rotary embedding of each layer that has one."""
        mixers = (mixer for layer in self.layers for mixer in layer.mixers)
        found = (m.rope for m in mixers if isinstance(m, AttentionConfig | LatentConfig))
        return tuple(rope for rope in found if rope is not None)

    @property
    def reads_across(self) -> bool:
        """Whether some layer reads another layer's cache."""
        return any(source_of(mixer) is not None for layer in self.layers for mixer in layer.mixers)

    @property
    def has_slopes(self) -> bool:
        """Whether some layer uses ALiBi."""
        mixers = (mixer for layer in self.layers for mixer in layer.mixers)
        return any(isinstance(m, AttentionConfig) and m.alibi is not None for m in mixers)

    @property
    def longest_context(self) -> int:
        """Maximum sequence length."""
        stretch = 1.0 if self.counts_stretch else max((r.stretch for r in self.ropes), default=1.0)
        return int(self.max_position * stretch)

    @property
    def usual_context(self) -> int:
        """Default maximum sequence length: with LongRoPE the original length, within which quality
        is better."""
        originals = [r.original_max_position for r in self.ropes if r.kind == "longrope"]
        return min([self.longest_context, *originals])

    @property
    def groups(self) -> tuple[CacheGroup, ...]:
        return cache_groups(self.layer_specs)

    @property
    def rotates_by_planes(self) -> bool:
        """Whether it uses multimodal rotary positions."""
        return any(bool(rope.sections) for rope in self.ropes)

    @property
    def has_own_head(self) -> bool:
        """Whether the output head is untied."""
        return self.pooling is None and not self.tie_embeddings

    @property
    def has_logits_bias(self) -> bool:
        """Whether the output head has a bias beside the embedding that it is tied to."""
        return self.pooling is None and self.tie_embeddings and self.head_bias

    @property
    def sees_ahead(self) -> bool:
        """Whether attention is bidirectional, so that prompts must run in one step."""
        return any(spec.keeps_nothing for spec in self.cache_specs)

    @property
    def source_encoder(self) -> TextEncoderConfig | TextStackConfig | None:
        """The text encoder, or None."""
        return self.text_encoder if self.text_stack is None else self.text_stack

    @property
    def cross_encoder(self) -> SpeechConfig | TextEncoderConfig | TextStackConfig | None:
        """The encoder of cross attention, or None."""
        return self.source_encoder if self.speech is None else self.speech

    @property
    def cross_width(self) -> int:
        """Elements of all layers' cross attention keys and values per encoder position."""
        found = (layer.cross for layer in self.layers)
        return sum(2 * one.num_kv_heads * one.head_dim for one in found if one is not None)

    def cross_index(self, layer: int) -> int:
        """Index of a layer among those with cross attention."""
        return sum(one.cross is not None for one in self.layers[:layer])

    @property
    def has_experts(self) -> bool:
        """Whether some layer is a mixture of experts."""
        return any(isinstance(layer.ffn, ExpertsConfig) for layer in self.layers)

    @property
    def has_recurrent(self) -> bool:
        """Whether some layer is recurrent."""
        return any(spec.is_state for spec in self.cache_specs)


def source_of(mixer: SingleMixer) -> int | None:
    """Layer whose cache this mixer reads instead of its own, or None."""
    return mixer.source if isinstance(mixer, AttentionConfig) else None
