"""Gemma (1): Llama with a scaled embedding, norm weights stored minus one, and GELU."""

from __future__ import annotations

import math
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

ARCHITECTURES = ("GemmaForCausalLM",)
MODELS = "Gemma"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=256000,
    hidden_size=3072,
    intermediate_size=24576,
    num_layers=28,
    num_heads=16,
    num_kv_heads=16,
    head_dim=256,
    max_position=8192,
    activation="gelu_pytorch_tanh",
    tie_embeddings=True,
    bos_token_id=2,
    eos_token_id=1,
)
# The first releases say "gelu" and mean this.
GELU = "gelu_pytorch_tanh"


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields({**hf, "hidden_act": GELU} if hf.get("hidden_act") == "gelu" else hf)
    if fields.values.get("hidden_activation") not in (None, GELU):
        fields.refuse("hidden_activation", f"{GELU!r} or null: that of all Gemma models")
    if fields.values.get("use_bidirectional_attention") not in (None, False):
        fields.refuse("use_bidirectional_attention", "false: attention is causal here")
    num_layers = read_num_layers(fields, DEFAULTS)
    expect_uniform_layers(fields, num_layers, "full")
    bias = fields.flag("attention_bias", False)
    attention = read_attention(fields, DEFAULTS, qkv_bias=bias, output_bias=bias)
    layer = LayerConfig(attention, read_mlp(fields, DEFAULTS))
    config = read_decoder(fields, DEFAULTS, (layer,) * num_layers)
    return replace(config, norm="rms_one_plus", embed_scale=math.sqrt(config.hidden_size))


def write_config(config: ModelConfig) -> dict[str, object]:
    family = {"model_type": "gemma", "attention_bias": written_attention(config).qkv_bias}
    return {**write_decoder(config), **family}
