"""Decoder layer configuration: mixers, feed-forward blocks, experts and routing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from jengine.config.attention import AttentionConfig, LatentConfig
from jengine.config.recurrent import RecurrentConfig
from jengine.config.side_by_side import SharedBlockConfig, SideBySideConfig

# `clamped_swiglu` is a gate of its own: it takes both halves of a gated MLP. `xielu` has parameters
# and is of plain MLPs alone.
Activation = Literal[
    "silu", "gelu_tanh", "gelu", "relu", "relu_squared", "clamped_swiglu", "xielu"
]  # fmt: skip


@dataclass(frozen=True)
class MlpConfig:
    """A dense feed-forward block, gated or not."""

    intermediate_size: int  # 0: the layer has none
    activation: Activation = "silu"
    gated: bool = True
    biases: bool = False
    inner_norm: bool = False  # whether the second matmul's input is normalised
    # What gates are multiplied by before the activation, and the block's result.
    gate_scale: float = 1.0
    output_scale: float = 1.0

    @property
    def active_size(self) -> int:
        return self.intermediate_size


@dataclass(frozen=True)
class LayerInputsConfig:
    """Per-layer input vectors (Gemma 4), made from the token and its embedding and added to the
    residual stream, gated, at the layer's end."""

    size: int
    rows: int  # of the table that tokens are looked up in
    activation: Activation = "gelu_tanh"  # of the gate


@dataclass(frozen=True)
class RoutingConfig:
    """Expert routing: scores, selection, weights."""

    # `sparse_mixer`: one after the other, each by a softmax over those that are about as good.
    scores: Literal["softmax", "sigmoid", "sparse_mixer"] = "softmax"
    jitter: float = 0.0  # of `sparse_mixer`: half the share by which those may be worse
    # Whether the weights of a token's experts are scaled to a sum of one.
    normalize: bool = True
    scale: float = 1.0  # of the weights, after that
    # Whether each expert has a parameter that is added to its score for the choice alone.
    choice_bias: bool = False
    chooses_by_logits: bool = False  # whether logits are compared for the choice, not scores
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
    out_norm: bool = False  # whether the sum of all is normalised

    @property
    def active_size(self) -> int:
        """Intermediate width per token over its active experts."""
        return self.experts_per_token * self.intermediate_size + self.shared_size


# What mixes tokens in one way, and what may stand in the two halves of a layer. Other kinds are
# added to these unions.
SingleMixer = AttentionConfig | LatentConfig | RecurrentConfig
MixerConfig = SingleMixer | SideBySideConfig | SharedBlockConfig
FfnConfig = MlpConfig | ExpertsConfig


@dataclass(frozen=True)
class LayerConfig:
    """One decoder layer: mixer, then feed-forward block."""

    mixer: MixerConfig
    ffn: FfnConfig
    attention_norm: bool = True  # whether the mixer's input is normalised, where inputs are
    # Attention to the output of an encoder, between the two. None: the layer has none.
    cross: AttentionConfig | None = None

    @property
    def mixers(self) -> tuple[SingleMixer, ...]:
        """The layer's mixers: one, or attention and a recurrence."""
        mixer = self.mixer
        if isinstance(mixer, SideBySideConfig | SharedBlockConfig):
            return mixer.attention, mixer.recurrent
        return (mixer,)
