"""SmolLM3: Llama without rotation in every fourth layer."""

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
from jengine.models.reading.hf_layers import expect_uniform_layers, read_rotated_layers
from jengine.models.reading.hf_write import write_decoder, written_attention, written_biases
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("SmolLM3ForCausalLM",)
MODELS = "SmolLM3"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=128256,
    hidden_size=2048,
    intermediate_size=11008,
    num_layers=36,
    num_heads=16,
    num_kv_heads=4,
    head_dim=None,
    max_position=32768,
    rope_theta=2000000.0,
    tie_embeddings=True,
    bos_token_id=128000,
    eos_token_id=128001,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    if fields.flag("use_sliding_window", False):
        fields.refuse("use_sliding_window", "false, as in SmolLM3")
    num_layers = read_num_layers(fields, DEFAULTS)
    expect_uniform_layers(fields, num_layers, "full")
    bias = fields.flag("attention_bias", False)
    attention = read_attention(fields, DEFAULTS, qkv_bias=bias, output_bias=bias)
    mlp = replace(read_mlp(fields, DEFAULTS), biases=fields.flag("mlp_bias", False))
    rotated = read_rotated_layers(fields, num_layers)
    layers = (
        LayerConfig(attention if is_rotated else replace(attention, rope=None), mlp)
        for is_rotated in rotated
    )
    return read_decoder(fields, DEFAULTS, tuple(layers))


def write_config(config: ModelConfig) -> dict[str, object]:
    return {
        **write_decoder(config),
        "model_type": "smollm3",
        "attention_bias": written_attention(config).qkv_bias,
        "mlp_bias": written_biases(config),
        "no_rope_layers": [int(layer.mixer.rope is not None) for layer in config.layers],
        "pad_token_id": None,
    }
