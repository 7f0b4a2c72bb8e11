"""Command R: parallel block with one norm, interleaved rotary pairs, scaled logits. Command R7B and
A (Cohere 2): sliding windows on rotated layers, full attention without rotation.
"""

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
from jengine.models.reading.hf_layers import (
    expect_uniform_layers,
    read_layer_pattern,
    rotated_in_windows,
    with_windows,
)
from jengine.models.reading.hf_write import (
    write_decoder,
    write_layer_types,
    written_attention,
    written_window,
)
from jengine.models.tensors.checkpoint import Names

SECOND = "Cohere2ForCausalLM"
ARCHITECTURES = ("CohereForCausalLM", SECOND)
MODELS = "Command R, Command R+, Command R7B, Command A"
NAMES = Names(rotates_neighbours=True)
DEFAULTS = Defaults(
    vocab_size=256000,
    hidden_size=8192,
    intermediate_size=22528,
    num_layers=40,
    num_heads=64,
    num_kv_heads=None,
    head_dim=None,
    max_position=8192,
    norm_eps=1e-5,
    norm_eps_key="layer_norm_eps",
    tie_embeddings=True,
    bos_token_id=5,
    eos_token_id=255001,
)
FIRST_DEFAULTS = replace(DEFAULTS, rope_theta=500000.0)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    is_second = SECOND in (fields.values.get("architectures") or ())
    defaults = DEFAULTS if is_second else FIRST_DEFAULTS
    num_layers = read_num_layers(fields, defaults)
    bias = fields.flag("attention_bias", False)
    attention = read_attention(fields, defaults, qkv_bias=bias, output_bias=bias)
    if fields.flag("use_qk_norm", False):
        if is_second:
            fields.refuse("use_qk_norm", "false: these models have no such norms")
        attention = replace(attention, qk_norm="layer")
    layer = LayerConfig(attention, read_mlp(fields, defaults))
    if is_second:
        pattern = fields.integer("sliding_window_pattern", 4)
        windows = read_layer_pattern(fields, num_layers, 4096, full_every=pattern)
        layers = tuple(map(rotated_in_windows, with_windows(layer, windows)))
    else:
        expect_uniform_layers(fields, num_layers, "full")
        layers = (layer,) * num_layers
    return replace(
        read_decoder(fields, defaults, layers),
        norm="layer_no_bias",
        block="parallel_one_norm",
        logit_scale=fields.number("logit_scale", 0.0625, above_minimum=True),
    )


def write_config(config: ModelConfig) -> dict[str, object]:
    windows = {"layer_types": write_layer_types(config), "sliding_window": written_window(config)}
    return {
        **write_decoder(config, DEFAULTS.norm_eps_key),
        **(windows if config.architecture == SECOND else {}),
        "model_type": "cohere2" if config.architecture == SECOND else "cohere",
        "attention_bias": written_attention(config).qkv_bias,
        **({"use_qk_norm": True} if written_attention(config).qk_norm else {}),
        "logit_scale": config.logit_scale,
        "pad_token_id": None,
    }
