"""Apertus: QK-norm per head, and plain MLPs with a learned activation (xIELU)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from jengine.config import Activation, LayerConfig, MlpConfig, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    ACTIVATIONS,
    Defaults,
    read_attention,
    read_decoder,
    read_num_layers,
)
from jengine.models.reading.hf_write import write_activation, write_decoder, written_attention
from jengine.models.tensors.checkpoint import Names

TEXT = "Apertus1p5TextForCausalLM"
ARCHITECTURES = ("ApertusForCausalLM", TEXT)
MODELS = "Apertus, Apertus 1.5 (text)"
NAMES = Names(
    before_attention="attention_layernorm",
    before_mlp="feedforward_layernorm",
    gate_up=("mlp.up_proj",),
)
DEFAULTS = Defaults(
    vocab_size=131072,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=None,
    head_dim=None,
    max_position=65536,
    norm_eps=1e-5,
    rope_theta=12000000.0,
    bos_token_id=1,
    eos_token_id=2,
)
USUAL_ROPE = {
    "rope_type": "llama3",
    "rope_theta": DEFAULTS.rope_theta,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
OWN_ACTIVATION = "xielu"
KNOWN = {**ACTIVATIONS, OWN_ACTIVATION: OWN_ACTIVATION}


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    has_rope = any(hf.get(key) is not None for key in ("rope_parameters", "rope_scaling"))
    fields = Fields(hf if has_rope else {**hf, "rope_parameters": USUAL_ROPE})
    bias = fields.flag("attention_bias", False)
    attention = read_attention(fields, DEFAULTS, qkv_bias=bias, output_bias=bias, qk_norm="head")
    mlp = MlpConfig(
        fields.integer("intermediate_size", DEFAULTS.intermediate_size),
        cast(Activation, fields.choice("hidden_act", OWN_ACTIVATION, KNOWN)),
        gated=False,
    )
    layer = LayerConfig(attention, mlp)
    return read_decoder(fields, DEFAULTS, (layer,) * read_num_layers(fields, DEFAULTS))


def write_config(config: ModelConfig) -> dict[str, object]:
    is_own = config.layers[0].ffn.activation == "xielu"
    return {
        **write_decoder(config),
        "model_type": "apertus1p5_text" if config.architecture == TEXT else "apertus",
        "attention_bias": written_attention(config).qkv_bias,
        "hidden_act": OWN_ACTIVATION if is_own else write_activation(config),
    }
