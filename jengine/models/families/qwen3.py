"""Qwen3: QK-norm per head; head_dim is independent of hidden_size."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import LayerConfig, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    Defaults,
    read_attention,
    read_decoder,
    read_mlp,
    read_num_layers,
)
from jengine.models.reading.hf_layers import read_layer_windows, with_windows
from jengine.models.reading.hf_write import write_decoder, write_layer_windows, written_attention
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("Qwen3ForCausalLM",)
MODELS = "Qwen3"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=151936,
    hidden_size=4096,
    intermediate_size=22016,
    num_layers=32,
    num_heads=32,
    num_kv_heads=32,
    head_dim=128,
    max_position=32768,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    bias = fields.flag("attention_bias", False)
    windows = read_layer_windows(fields, read_num_layers(fields, DEFAULTS))
    attention = read_attention(fields, DEFAULTS, qkv_bias=bias, output_bias=bias, qk_norm="head")
    layer = LayerConfig(attention, read_mlp(fields, DEFAULTS))
    return read_decoder(fields, DEFAULTS, with_windows(layer, windows))


def write_config(config: ModelConfig) -> dict[str, object]:
    bias = written_attention(config).qkv_bias
    family = {"model_type": "qwen3", "attention_bias": bias}
    return {**write_decoder(config), **family, **write_layer_windows(config)}
