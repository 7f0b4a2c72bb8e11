"""Mixtral: as Mistral, with experts on every layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import ModelConfig, MoeConfig
from jengine.models.checkpoint import Names
from jengine.models.fields import Fields
from jengine.models.hf_config import (
    MOST_EXPERTS,
    Defaults,
    expect_uniform_layers,
    read_decoder,
    read_num_layers,
    write_decoder,
)

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
    """The decoder that a Mixtral config.json describes."""
    fields = Fields(hf)
    num_layers = read_num_layers(fields, DEFAULTS)
    window = fields.optional_integer("sliding_window", None)
    expect_uniform_layers(fields, num_layers, "full" if window is None else "sliding")
    config = read_decoder(fields, DEFAULTS, windows=(window,) * num_layers)
    experts = fields.integer("num_local_experts", 8, maximum=MOST_EXPERTS)
    moe = MoeConfig(
        num_experts=experts,
        experts_per_token=fields.integer("num_experts_per_tok", 2, maximum=experts),
        intermediate_size=config.intermediate_size,
        layers=tuple(range(num_layers)),
    )
    return replace(config, moe=moe)


def write_config(config: ModelConfig) -> dict[str, object]:
    """The inverse of `read_config`."""
    family: dict[str, object] = {
        "model_type": "mixtral",
        "sliding_window": config.layers[0].window,
    }
    if config.moe is not None:
        family["num_local_experts"] = config.moe.num_experts
        family["num_experts_per_tok"] = config.moe.experts_per_token
    return {**write_decoder(config), **family}
