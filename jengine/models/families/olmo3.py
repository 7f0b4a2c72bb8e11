"""OLMo 3: OLMo 2 with a sliding window on three of four layers, often with YaRN on the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import LayerConfig, ModelConfig
from jengine.models.families.olmo2 import NAMES
from jengine.models.reading.hf_config import (
    Defaults,
    read_attention,
    read_decoder,
    read_mlp,
    read_num_layers,
)
from jengine.models.reading.hf_layers import read_layer_pattern, with_sliding_rope, with_windows
from jengine.models.reading.hf_rope import read_rope, ropes_by_layer_type, write_rope_scaling
from jengine.models.reading.hf_write import (
    write_decoder,
    write_layer_types,
    written_attention,
    written_window,
)

__all__ = ["ARCHITECTURES", "MODELS", "NAMES", "read_config", "write_config"]

ARCHITECTURES = ("Olmo3ForCausalLM",)
MODELS = "OLMo 3"
DEFAULTS = Defaults(
    vocab_size=50304,
    hidden_size=4096,
    intermediate_size=11008,
    num_layers=32,
    num_heads=32,
    num_kv_heads=None,
    head_dim=None,
    max_position=2048,
    norm_eps=1e-5,
    rope_theta=500000.0,
    eos_token_id=50279,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields, sliding = ropes_by_layer_type(hf, "rope_theta")
    num_layers = read_num_layers(fields, DEFAULTS)
    bias = fields.flag("attention_bias", False)
    attention = read_attention(fields, DEFAULTS, qkv_bias=bias, output_bias=bias, qk_norm="whole")
    windows = read_layer_pattern(fields, num_layers, 4096, full_every=4)
    layers = with_windows(LayerConfig(attention, read_mlp(fields, DEFAULTS)), windows)
    config = read_decoder(fields, DEFAULTS, layers)
    rope = read_rope(sliding, DEFAULTS.rope_theta, config.max_position)
    layers = tuple(with_sliding_rope(layer, rope) for layer in layers)
    return replace(config, layers=layers, norm_places="after")


def write_config(config: ModelConfig) -> dict[str, object]:
    written = write_decoder(config)
    ropes: dict[str, object] = {}
    for name, layer in zip(write_layer_types(config), config.layers, strict=True):
        if layer.mixer.rope is not None:
            scaling = write_rope_scaling(layer.mixer.rope) or {"rope_type": "default"}
            ropes[name] = {**scaling, "rope_theta": layer.mixer.rope.theta}
    # transformers takes the flat settings for full attention alone.
    for key in ("rope_theta", "rope_scaling"):
        del written[key]
    return {
        **written,
        "model_type": "olmo3",
        "rope_parameters": ropes,
        "attention_bias": written_attention(config).qkv_bias,
        "layer_types": write_layer_types(config),
        "sliding_window": written_window(config) or 4096,
        "pad_token_id": None,
    }
