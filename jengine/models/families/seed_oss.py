"""Seed-OSS: Llama with QKV biases but none on the output projection."""

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
from jengine.models.reading.hf_write import write_decoder, written_attention, written_biases
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("SeedOssForCausalLM",)
MODELS = "Seed-OSS"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=155136,
    hidden_size=4096,
    intermediate_size=27648,
    num_layers=64,
    num_heads=80,
    num_kv_heads=8,
    head_dim=128,
    max_position=524288,
    bos_token_id=0,
    eos_token_id=2,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    num_layers = read_num_layers(fields, DEFAULTS)
    expect_uniform_layers(fields, num_layers, "full")
    attention = read_attention(
        fields,
        DEFAULTS,
        qkv_bias=fields.flag("attention_bias", True),
        output_bias=fields.flag("attention_out_bias", False),
    )
    mlp = replace(read_mlp(fields, DEFAULTS), biases=fields.flag("mlp_bias", False))
    layer = LayerConfig(attention, mlp)
    return read_decoder(fields, DEFAULTS, (layer,) * num_layers)


def write_config(config: ModelConfig) -> dict[str, object]:
    attention = written_attention(config)
    family = {
        "model_type": "seed_oss",
        "attention_bias": attention.qkv_bias,
        "attention_out_bias": attention.output_bias,
        "mlp_bias": written_biases(config),
    }
    return {**write_decoder(config), **family}
