"""Gemma 2: norms before and after each block, soft caps, and a sliding window on every second
layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from jengine.config import AttentionConfig, LayerConfig, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    Defaults,
    read_attention,
    read_decoder,
    read_mlp,
    read_num_layers,
)
from jengine.models.reading.hf_layers import read_layer_pattern, with_windows
from jengine.models.reading.hf_write import (
    write_activation,
    write_decoder,
    write_layer_types,
    written_attention,
    written_window,
)
from jengine.models.tensors.checkpoint import Names

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
    fields = Fields(hf)
    if fields.values.get("use_bidirectional_attention") not in (None, False):
        fields.refuse("use_bidirectional_attention", "false: attention is causal here")
    windows = read_layer_pattern(fields, read_num_layers(fields, DEFAULTS), 4096, full_every=2)
    attention = replace(
        read_gemma_attention(fields, DEFAULTS),
        soft_cap=fields.optional_number("attn_logit_softcapping", 50.0),
    )
    layer = LayerConfig(attention, read_mlp(fields, DEFAULTS))
    config = read_gemma(fields, DEFAULTS, with_windows(layer, windows))
    return replace(config, logit_soft_cap=fields.optional_number("final_logit_softcapping", 30.0))


def write_config(config: ModelConfig) -> dict[str, object]:
    caps = {
        "attn_logit_softcapping": written_attention(config).soft_cap,
        "final_logit_softcapping": config.logit_soft_cap,
    }
    return {**write_gemma(config), "model_type": "gemma2", **caps}


def read_gemma_attention(
    fields: Fields, defaults: Defaults, qk_norm: Literal["head"] | None = None
) -> AttentionConfig:
    """Attention of Gemma 2 and 3, for a full layer."""
    bias = fields.flag("attention_bias", False)
    attention = read_attention(fields, defaults, qkv_bias=bias, output_bias=bias, qk_norm=qk_norm)
    return replace(attention, scale=fields.integer("query_pre_attn_scalar", 256) ** -0.5)


def read_gemma(fields: Fields, defaults: Defaults, layers: tuple[LayerConfig, ...]) -> ModelConfig:
    """Model settings common to Gemma 2 and 3."""
    config = read_decoder(fields, defaults, layers)
    return replace(
        config,
        norm="rms_one_plus",
        norm_places="around",
        embed_scale=math.sqrt(config.hidden_size),
    )


def write_gemma(config: ModelConfig) -> dict[str, object]:
    """Inverse of `read_gemma` and `read_gemma_attention`."""
    attention = written_attention(config)
    written = {
        "hidden_activation": write_activation(config),
        "attention_bias": attention.qkv_bias,
        "layer_types": write_layer_types(config),
        "sliding_window": written_window(config) or 4096,
    }
    if attention.scale is not None:
        written["query_pre_attn_scalar"] = round(attention.scale**-2)
    return {**write_decoder(config), **written}
