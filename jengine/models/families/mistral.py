"""Mistral: Llama with a sliding window on every layer or on none."""

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
from jengine.models.reading.hf_write import write_decoder, written_window
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("MistralForCausalLM",)
MODELS = "Mistral"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=32000,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=None,
    max_position=131072,
    bos_token_id=1,
    eos_token_id=2,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    num_layers = read_num_layers(fields, DEFAULTS)
    window = fields.optional_integer("sliding_window", 4096)
    expect_uniform_layers(fields, num_layers, "full" if window is None else "sliding")
    attention = replace(read_attention(fields, DEFAULTS), window=window)
    layer = LayerConfig(attention, read_mlp(fields, DEFAULTS))
    return read_decoder(fields, DEFAULTS, (layer,) * num_layers)


def write_config(config: ModelConfig) -> dict[str, object]:
    family = {"model_type": "mistral", "sliding_window": written_window(config)}
    return {**write_decoder(config), **family}
