"""Qwen2 and Qwen2.5: Llama with QKV biases."""

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
from jengine.models.reading.hf_write import write_decoder, write_layer_windows
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("Qwen2ForCausalLM",)
MODELS = "Qwen2, Qwen2.5"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=151936,
    hidden_size=4096,
    intermediate_size=22016,
    num_layers=32,
    num_heads=32,
    num_kv_heads=32,
    head_dim=None,
    max_position=32768,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    windows = read_layer_windows(fields, read_num_layers(fields, DEFAULTS))
    attention = read_attention(fields, DEFAULTS, qkv_bias=True)
    layer = LayerConfig(attention, read_mlp(fields, DEFAULTS))
    return read_decoder(fields, DEFAULTS, with_windows(layer, windows))


def write_config(config: ModelConfig) -> dict[str, object]:
    return {**write_decoder(config), "model_type": "qwen2", **write_layer_windows(config)}
