"""Qwen3 with experts, on all layers or on some."""

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

ARCHITECTURES = ("Qwen3MoeForCausalLM",)
MODELS = "Qwen3 MoE"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=151936,
    hidden_size=2048,
    intermediate_size=6144,
    num_layers=24,
    num_heads=32,
    num_kv_heads=4,
    head_dim=None,
    max_position=32768,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    """The decoder that a Qwen3-MoE config.json describes."""
    fields = Fields(hf)
    num_layers = read_num_layers(fields, DEFAULTS)
    sliding = fields.flag("use_sliding_window", False)
    window = fields.optional_integer("sliding_window", 4096) if sliding else None
    expect_uniform_layers(fields, num_layers, "full" if window is None else "sliding")
    bias = fields.flag("attention_bias", False)
    config = read_decoder(
        fields,
        DEFAULTS,
        windows=(window,) * num_layers,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm="head",
    )
    return replace(config, moe=_read_moe(fields, num_layers))


def write_config(config: ModelConfig) -> dict[str, object]:
    """The inverse of `read_config`."""
    window = config.layers[0].window
    family: dict[str, object] = {
        "model_type": "qwen3_moe",
        "attention_bias": config.qkv_bias,
        "use_sliding_window": window is not None,
        "sliding_window": window,
    }
    moe = config.moe
    if moe is not None:
        dense = sorted(set(range(len(config.layers))) - set(moe.layers))
        family |= {
            "num_experts": moe.num_experts,
            "num_experts_per_tok": moe.experts_per_token,
            "moe_intermediate_size": moe.intermediate_size,
            "norm_topk_prob": moe.normalize_weights,
            "mlp_only_layers": dense,
            "decoder_sparse_step": 1,
        }
    return {**write_decoder(config), **family}


def _read_moe(fields: Fields, num_layers: int) -> MoeConfig:
    # transformers 5 writes the second name.
    key = "num_experts" if "num_experts" in fields.values else "num_local_experts"
    experts = fields.integer(key, 128, maximum=MOST_EXPERTS)
    dense = fields.integers("mlp_only_layers", None, maximum=num_layers - 1, each="a layer")
    step = fields.integer("decoder_sparse_step", 1)
    return MoeConfig(
        num_experts=experts,
        experts_per_token=fields.integer("num_experts_per_tok", 8, maximum=experts),
        intermediate_size=fields.integer("moe_intermediate_size", 768),
        layers=tuple(i for i in range(num_layers) if i not in dense and (i + 1) % step == 0),
        normalize_weights=fields.flag("norm_topk_prob", False),
    )
