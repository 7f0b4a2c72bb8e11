"""An encoder of text as data: a transformer whose tokens attend to all others of their text. Every
layer of a decoder attends to its output.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jengine.config.attention import AttentionConfig
from jengine.config.layers import LayerConfig, MlpConfig
from jengine.config.vision import VisionActivation


@dataclass(frozen=True)
class TextEncoderConfig:
    """The encoder of BART. It looks tokens up in the decoder's embedding, with positions of its
    own, and its norms stand where the decoder's do."""

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
        """Numbers of a head."""
        return self.hidden_size // self.num_heads


@dataclass(frozen=True)
class TextStackConfig:
    """The encoder of T5: layers of the decoder's own kind and width, but for their number, whose
    tokens attend to all others of their text."""

    num_layers: int
    attention: AttentionConfig  # of the first layer; the others take its biases
    ffn: MlpConfig
    positions: int  # tokens of the longest text
    start_token: int  # with which the decoder's prompt begins

    @property
    def layers(self) -> tuple[LayerConfig, ...]:
        """Its layers."""
        return layers_alike(self.num_layers, self.attention, self.ffn)


def layers_alike(
    count: int, attention: AttentionConfig, ffn: MlpConfig, cross: AttentionConfig | None = None
) -> tuple[LayerConfig, ...]:
    """So many layers, of which the first has the biases by distance that all take."""
    taken = attention
    if attention.distance_bias is not None:
        taken = replace(attention, distance_bias=replace(attention.distance_bias, is_own=False))
    first, other = (LayerConfig(one, ffn, cross=cross) for one in (attention, taken))
    return (first, *[other] * (count - 1))
