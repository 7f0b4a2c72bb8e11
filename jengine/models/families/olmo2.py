"""OLMo 2: post-norms only; QK-norm over all heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import LayerConfig, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    Defaults,
    read_attention,
    read_decoder,
    read_mlp,
    read_num_layers,
)
from jengine.models.reading.hf_layers import expect_uniform_layers
from jengine.models.reading.hf_write import write_decoder, written_attention
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("Olmo2ForCausalLM",)
MODELS = "OLMo 2"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=50304,
    hidden_size=4096,
    intermediate_size=11008,
    num_layers=32,
    num_heads=32,
    num_kv_heads=None,
    head_dim=None,
    max_position=2048,
    norm_eps=1e-5,
    eos_token_id=50279,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    num_layers = read_num_layers(fields, DEFAULTS)
    expect_uniform_layers(fields, num_layers, "full")
    bias = fields.flag("attention_bias", False)
    attention = read_attention(fields, DEFAULTS, qkv_bias=bias, output_bias=bias, qk_norm="whole")
    layer = LayerConfig(attention, read_mlp(fields, DEFAULTS))
    config = read_decoder(fields, DEFAULTS, (layer,) * num_layers)
    return replace(config, norm_places="after")


def write_config(config: ModelConfig) -> dict[str, object]:
    family = {"model_type": "olmo2", "attention_bias": written_attention(config).qkv_bias}
    return {**write_decoder(config), **family}
