"""Bamba: Mamba-2 in most layers, attention with half-rotated heads in the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import LayerConfig, Mamba2Config, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    Defaults,
    read_attention,
    read_decoder,
    read_mlp,
    read_num_layers,
)
from jengine.models.reading.hf_mamba import read_mamba2, write_mamba2
from jengine.models.reading.hf_write import write_decoder, written_attention, written_biases
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("BambaForCausalLM",)
MODELS = "Bamba"
NAMES = Names(
    final_norm="final_layernorm",
    before_mlp="pre_ff_layernorm",
    gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
)
DEFAULTS = Defaults(
    vocab_size=128000,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=None,
    max_position=262144,
    norm_eps=1e-5,
    partial_rotary=0.5,
    bos_token_id=1,
    eos_token_id=2,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    num_layers = read_num_layers(fields, DEFAULTS)
    bias = fields.flag("attention_bias", False)
    attention = read_attention(fields, DEFAULTS, qkv_bias=bias, output_bias=bias)
    mamba = read_mamba2(fields, fields.integer("hidden_size", DEFAULTS.hidden_size))
    mlp = replace(read_mlp(fields, DEFAULTS), biases=fields.flag("mlp_bias", False))
    full = fields.integers("attn_layer_indices", None, maximum=num_layers - 1, each="a layer")
    mixers = [attention if layer in full else mamba for layer in range(num_layers)]
    return read_decoder(fields, DEFAULTS, tuple(LayerConfig(mixer, mlp) for mixer in mixers))


def write_config(config: ModelConfig) -> dict[str, object]:
    mixers = [layer.mixer for layer in config.layers]
    return {
        **write_decoder(config),
        **write_mamba2(config),
        "model_type": "bamba",
        "attention_bias": written_attention(config).qkv_bias,
        "mlp_bias": written_biases(config),
        "attn_layer_indices": [
            layer for layer, mixer in enumerate(mixers) if not isinstance(mixer, Mamba2Config)
        ],
    }
