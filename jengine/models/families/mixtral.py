"""Mixtral: Mistral with experts on every layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import ExpertsConfig, LayerConfig, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    MOST_EXPERTS,
    Defaults,
    read_attention,
    read_decoder,
    read_mlp,
    read_num_layers,
)
from jengine.models.reading.hf_layers import expect_uniform_layers
from jengine.models.reading.hf_write import write_decoder, written_ffn, written_window
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("MixtralForCausalLM",)
MODELS = "Mixtral"
NAMES = Names(
    router="block_sparse_moe.gate",
    experts="block_sparse_moe.experts",
    expert_gate_up=("w1", "w3"),
    expert_down="w2",
)
DEFAULTS = Defaults(
    vocab_size=32000,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=None,
    max_position=131072,
    norm_eps=1e-5,
    rope_theta=1000000.0,
    bos_token_id=1,
    eos_token_id=2,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    num_layers = read_num_layers(fields, DEFAULTS)
    window = fields.optional_integer("sliding_window", None)
    expect_uniform_layers(fields, num_layers, "full" if window is None else "sliding")
    attention = replace(read_attention(fields, DEFAULTS), window=window)
    experts = fields.integer("num_local_experts", 8, maximum=MOST_EXPERTS)
    mlp = read_mlp(fields, DEFAULTS)
    ffn = ExpertsConfig(
        num_experts=experts,
        experts_per_token=fields.integer("num_experts_per_tok", 2, maximum=experts),
        intermediate_size=mlp.intermediate_size,
        activation=mlp.activation,
    )
    return read_decoder(fields, DEFAULTS, (LayerConfig(attention, ffn),) * num_layers)


def write_config(config: ModelConfig) -> dict[str, object]:
    family: dict[str, object] = {
        "model_type": "mixtral",
        "sliding_window": written_window(config),
    }
    ffn = written_ffn(config)
    if isinstance(ffn, ExpertsConfig):
        family["num_local_experts"] = ffn.num_experts
        family["num_experts_per_tok"] = ffn.experts_per_token
    return {**write_decoder(config), **family}
