"""Arcee AFM: Llama with an ungated squared-ReLU MLP."""

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

ARCHITECTURES = ("ArceeForCausalLM",)
MODELS = "Arcee AFM"
NAMES = Names(gate_up=("mlp.up_proj",))
DEFAULTS = Defaults(
    vocab_size=32000,
    hidden_size=2560,
    intermediate_size=18432,
    num_layers=32,
    num_heads=32,
    num_kv_heads=None,
    head_dim=None,
    max_position=4096,
    norm_eps=1e-5,
    activation="relu2",
    bos_token_id=128000,
    eos_token_id=128001,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    num_layers = read_num_layers(fields, DEFAULTS)
    expect_uniform_layers(fields, num_layers, "full")
    bias = fields.flag("attention_bias", False)
    attention = read_attention(fields, DEFAULTS, qkv_bias=bias, output_bias=bias)
    biases = fields.flag("mlp_bias", False)
    mlp = replace(read_mlp(fields, DEFAULTS), gated=False, biases=biases)
    return read_decoder(fields, DEFAULTS, (LayerConfig(attention, mlp),) * num_layers)


def write_config(config: ModelConfig) -> dict[str, object]:
    return {
        **write_decoder(config),
        "model_type": "arcee",
        "attention_bias": written_attention(config).qkv_bias,
        "mlp_bias": written_biases(config),
    }
