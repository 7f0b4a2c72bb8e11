"""Gemma 2: norms around attention and MLP, soft caps, and every second layer with a window."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from jengine.config import ModelConfig
from jengine.models.checkpoint import Names
from jengine.models.fields import Fields
from jengine.models.hf_config import (
    Defaults,
    read_decoder,
    read_layer_pattern,
    read_num_layers,
    write_activation,
    write_decoder,
    write_layer_types,
)

ARCHITECTURES = ("Gemma2ForCausalLM",)
MODELS = "Gemma 2"
NAMES = Names(before_mlp="pre_feedforward_layernorm")
DEFAULTS = Defaults(
    vocab_size=256000,
    hidden_size=2304,
    intermediate_size=9216,
    num_layers=26,
    num_heads=8,
    num_kv_heads=4,
    head_dim=256,
    max_position=8192,
    activation="gelu_pytorch_tanh",
    activation_key="hidden_activation",
    tie_embeddings=True,
    bos_token_id=2,
    eos_token_id=1,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    """The decoder that a Gemma 2 config.json describes."""
    fields = Fields(hf)
    windows = read_layer_pattern(fields, read_num_layers(fields, DEFAULTS), 4096, full_every=2)
    config = read_gemma(fields, DEFAULTS, windows)
    return replace(
        config,
        attention_soft_cap=fields.optional_number("attn_logit_softcapping", 50.0),
        logit_soft_cap=fields.optional_number("final_logit_softcapping", 30.0),
    )


def write_config(config: ModelConfig) -> dict[str, object]:
    """The inverse of `read_config`."""
    caps = {
        "attn_logit_softcapping": config.attention_soft_cap,
        "final_logit_softcapping": config.logit_soft_cap,
    }
    return {**write_gemma(config), "model_type": "gemma2", **caps}


def read_gemma(fields: Fields, defaults: Defaults, windows: tuple[int | None, ...]) -> ModelConfig:
    """What Gemma 2 and 3 have in common."""
    if fields.values.get("use_bidirectional_attention") not in (None, False):
        fields.refuse("use_bidirectional_attention", "false: attention is causal here")
    bias = fields.flag("attention_bias", False)
    config = read_decoder(fields, defaults, windows=windows, qkv_bias=bias, output_bias=bias)
    return replace(
        config,
        norm="rms_one_plus",
        norm_places="around",
        embed_scale=math.sqrt(config.hidden_size),
        attention_scale=fields.integer("query_pre_attn_scalar", 256) ** -0.5,
    )


def write_gemma(config: ModelConfig) -> dict[str, object]:
    """The inverse of `read_gemma`."""
    windows = [spec.window for spec in config.layers if spec.window is not None]
    written = {
        "hidden_activation": write_activation(config),
        "attention_bias": config.qkv_bias,
        "layer_types": write_layer_types(config),
        "sliding_window": windows[0] if windows else 4096,
    }
    if config.attention_scale is not None:
        written["query_pre_attn_scalar"] = round(config.attention_scale**-2)
    return {**write_decoder(config), **written}
