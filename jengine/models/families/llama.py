"""Llama 2 and 3: full attention on every layer, optional rope scaling."""

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

ARCHITECTURES = ("LlamaForCausalLM",)
MODELS = "Llama 2, Llama 3"
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
    bias = fields.flag("attention_bias", False)
    attention = read_attention(fields, DEFAULTS, qkv_bias=bias, output_bias=bias)
    mlp = replace(read_mlp(fields, DEFAULTS), biases=fields.flag("mlp_bias", False))
    layer = LayerConfig(attention, mlp)
    return read_decoder(fields, DEFAULTS, (layer,) * num_layers)


def write_config(config: ModelConfig) -> dict[str, object]:
    bias, mlp_bias = written_attention(config).qkv_bias, written_biases(config)
    family = {"model_type": "llama", "attention_bias": bias, "mlp_bias": mlp_bias}
    return {**write_decoder(config), **family}
