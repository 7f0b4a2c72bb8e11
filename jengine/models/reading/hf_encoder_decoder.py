"""Encoder-decoder keys that BART and Whisper share.

In: fields and transformers' defaults. Out: attention, MLP and sizes; and back.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jengine.config import AttentionConfig, MlpConfig, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import MOST_LAYERS, read_activation
from jengine.models.reading.hf_vision import read_vision_activation
from jengine.models.reading.hf_write import write_activation, write_common, written_attention


class Usual(NamedTuple):
    """transformers' defaults for missing keys."""

    heads: int
    layers: int
    ffn_dim: int
    start_token: int


def read_attention(fields: Fields, hidden: int, key: str, usual: Usual) -> AttentionConfig:
    """Attention with biases and without rotation; `key` names the number of heads."""
    heads = fields.integer(key, usual.heads)
    if hidden % heads:
        fields.refuse(key, f"a divisor of d_model ({hidden})")
    dim = hidden // heads
    return AttentionConfig(heads, heads, dim, rope=None, qkv_bias=True, output_bias=True)


def read_mlp(fields: Fields, usual: Usual) -> MlpConfig:
    width = fields.integer("decoder_ffn_dim", usual.ffn_dim)
    activation = read_activation(fields, "activation_function", "gelu")
    return MlpConfig(width, activation, gated=False, biases=True)


def read_encoder(fields: Fields, hidden: int, vocab: int, usual: Usual) -> dict[str, Any]:
    """Constructor arguments common to both encoder configs."""
    start = min(usual.start_token, vocab - 1)
    heads = read_attention(fields, hidden, "encoder_attention_heads", usual).num_heads
    return {
        "hidden_size": hidden,
        "intermediate_size": fields.integer("encoder_ffn_dim", usual.ffn_dim),
        "num_layers": fields.integer("encoder_layers", usual.layers, maximum=MOST_LAYERS),
        "num_heads": heads,
        "start_token": fields.integer(
            "decoder_start_token_id", start, minimum=0, maximum=vocab - 1
        ),
        "activation": read_vision_activation(fields, "gelu", "activation_function"),
    }


def write_both(config: ModelConfig) -> dict[str, object]:
    """Inverse of reading: the encoder's and the decoder's keys."""
    encoder = config.text_encoder if config.speech is None else config.speech
    assert encoder is not None, "read with one"
    common = write_common(config)
    return {
        **common,
        "is_encoder_decoder": True,
        "d_model": config.hidden_size,
        "decoder_layers": len(config.layers),
        "decoder_attention_heads": written_attention(config).num_heads,
        "decoder_ffn_dim": config.layers[0].ffn.active_size,
        "encoder_layers": encoder.num_layers,
        "encoder_attention_heads": encoder.num_heads,
        "encoder_ffn_dim": encoder.intermediate_size,
        "decoder_start_token_id": encoder.start_token,
        "activation_function": write_activation(config),
        "init_std": common.pop("initializer_range"),
    }
