"""Text encoder configuration: a bidirectional transformer, read by cross attention."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jengine.config.attention import AttentionConfig
from jengine.config.layers import LayerConfig, MlpConfig
from jengine.config.vision import VisionActivation


@dataclass(frozen=True)
class TextEncoderConfig:
    """BART's encoder: shares the decoder's embedding, has its own positions, with norms placed as
    in the decoder."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    positions: int  # tokens of the longest text
    start_token: int  # with which the decoder's prompt begins
    activation: VisionActivation = "gelu"
    position_offset: int = 0  # rows of its table before the first position's
    # As every transformer of this kind has it; see `models.vision_tower.BlockConfig`.
    gated: bool = False
    mlp_bias: bool = True
    qkv_bias: bool = True
    layer_scales: bool = False
    full_layers: tuple[int, ...] | None = None

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


@dataclass(frozen=True)
class TextStackConfig:
    """T5's encoder: bidirectional layers of the decoder's kind and width."""

    num_layers: int
    attention: AttentionConfig  # of the first layer; the others take its biases
    ffn: MlpConfig
    positions: int  # tokens of the longest text
    start_token: int  # with which the decoder's prompt begins

    @property
    def layers(self) -> tuple[LayerConfig, ...]:
        return layers_alike(self.num_layers, self.attention, self.ffn)


def layers_alike(
    count: int, attention: AttentionConfig, ffn: MlpConfig, cross: AttentionConfig | None = None
) -> tuple[LayerConfig, ...]:
    """`count` equal layers; the first one owns the relative position biases."""
    taken = attention
    if attention.distance_bias is not None:
        taken = replace(attention, distance_bias=replace(attention.distance_bias, is_own=False))
    first, other = (LayerConfig(one, ffn, cross=cross) for one in (attention, taken))
    return (first, *[other] * (count - 1))
