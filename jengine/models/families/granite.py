"""Granite 3: Llama with multipliers of embeddings, scores, residuals and logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import AttentionConfig, LayerConfig, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    Defaults,
    read_attention,
    read_decoder,
    read_mlp,
    read_num_layers,
)
from jengine.models.reading.hf_layers import expect_uniform_layers
from jengine.models.reading.hf_write import write_decoder, written_attention, written_biases
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("GraniteForCausalLM",)
MODELS = "Granite 3"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=32000,
    hidden_size=4096,
    intermediate_size=11008,
    num_layers=32,
    num_heads=32,
    num_kv_heads=None,
    head_dim=None,
    max_position=2048,
    bos_token_id=1,
    eos_token_id=2,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    num_layers = read_num_layers(fields, DEFAULTS)
    expect_uniform_layers(fields, num_layers, "full")
    mlp = replace(read_mlp(fields, DEFAULTS), biases=fields.flag("mlp_bias", False))
    layer = LayerConfig(read_granite_attention(fields, DEFAULTS), mlp)
    return read_granite(fields, DEFAULTS, (layer,) * num_layers)


def write_config(config: ModelConfig) -> dict[str, object]:
    return {**write_granite(config), "model_type": "granite", "mlp_bias": written_biases(config)}


def read_granite_attention(fields: Fields, defaults: Defaults) -> AttentionConfig:
    bias = fields.flag("attention_bias", False)
    attention = read_attention(fields, defaults, qkv_bias=bias, output_bias=bias)
    return replace(attention, scale=fields.number("attention_multiplier", 1.0, above_minimum=True))


def read_granite(
    fields: Fields, defaults: Defaults, layers: tuple[LayerConfig, ...]
) -> ModelConfig:
    """Model settings common to all Granite models."""
    return replace(
        read_decoder(fields, defaults, layers),
        embed_scale=fields.number("embedding_multiplier", 1.0, above_minimum=True),
        residual_scale=fields.number("residual_multiplier", 1.0, above_minimum=True),
        logit_scale=1.0 / fields.number("logits_scaling", 1.0, above_minimum=True),
    )


def write_granite(config: ModelConfig) -> dict[str, object]:
    """Inverse of `read_granite` and `read_granite_attention`."""
    attention = written_attention(config)
    return {
        **write_decoder(config),
        "attention_bias": attention.qkv_bias,
        "attention_multiplier": attention.scale,
        "embedding_multiplier": config.embed_scale,
        "residual_multiplier": config.residual_scale,
        "logits_scaling": 1.0 / config.logit_scale,
        "pad_token_id": None,
    }
