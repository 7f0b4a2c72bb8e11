"""ERNIE 4.5 (dense): Llama with interleaved rotary pairs."""

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
from jengine.models.reading.hf_write import write_decoder, written_biases
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("Ernie4_5ForCausalLM",)
MODELS = "ERNIE 4.5 (dense)"
NAMES = Names(rotates_neighbours=True)
DEFAULTS = Defaults(
    vocab_size=103424,
    hidden_size=1024,
    intermediate_size=3072,
    num_layers=18,
    num_heads=16,
    num_kv_heads=2,
    head_dim=128,
    max_position=131072,
    norm_eps=1e-5,
    rope_theta=500000.0,
    tie_embeddings=True,
    bos_token_id=1,
    eos_token_id=2,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    num_layers = read_num_layers(fields, DEFAULTS)
    expect_uniform_layers(fields, num_layers, "full")
    bias = fields.flag("use_bias", False)
    attention = read_attention(fields, DEFAULTS, qkv_bias=bias, output_bias=bias)
    mlp = replace(read_mlp(fields, DEFAULTS), biases=bias)
    return read_decoder(fields, DEFAULTS, (LayerConfig(attention, mlp),) * num_layers)


def write_config(config: ModelConfig) -> dict[str, object]:
    family = {"model_type": "ernie4_5", "use_bias": written_biases(config)}
    return {**write_decoder(config), **family}
