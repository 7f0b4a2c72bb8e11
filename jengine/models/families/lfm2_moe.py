"""LFM2 MoE: LFM2 with experts after the first layers, chosen by biased sigmoids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import ExpertsConfig, ModelConfig, RoutingConfig
from jengine.models.families import lfm2
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import read_experts_count
from jengine.models.reading.hf_write import written_experts

ARCHITECTURES = ("Lfm2MoeForCausalLM",)
MODELS = "LFM2 MoE"
NAMES = replace(
    lfm2.NAMES,
    router="feed_forward.gate",
    choice_bias="feed_forward.expert_bias",
    experts="feed_forward.experts",
    expert_gate_up=("w1", "w3"),
    expert_down="w2",
)
# What config.json leaves out, where it differs from LFM2's.
USUAL = {"hidden_size": 2048, "intermediate_size": 7168}
FIXED = {"block_auto_adjust_ff_dim": False}  # sizes are those of the matrices


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    config, fields = lfm2.read_config({**USUAL, **hf, **FIXED}), Fields(hf)
    dense = fields.integer("num_dense_layers", 2, minimum=0)
    experts = ExpertsConfig(
        *read_experts_count(fields, 32, 4, "num_experts"),
        fields.integer("moe_intermediate_size", 1792),
        routing=RoutingConfig(
            scores="sigmoid",
            normalize=fields.flag("norm_topk_prob", True),
            scale=fields.number("routed_scaling_factor", 1.0),
            choice_bias=fields.flag("use_expert_bias", True),
        ),
    )
    layers = (
        layer if index < dense else replace(layer, ffn=experts)
        for index, layer in enumerate(config.layers)
    )
    return replace(config, layers=tuple(layers))


def write_config(config: ModelConfig) -> dict[str, object]:
    experts = written_experts(config)
    sparse = [isinstance(layer.ffn, ExpertsConfig) for layer in config.layers]
    return {
        **lfm2.write_config(config),
        "model_type": "lfm2_moe",
        "num_dense_layers": sparse.index(True),
        "num_experts": experts.num_experts,
        "num_experts_per_tok": experts.experts_per_token,
        "moe_intermediate_size": experts.intermediate_size,
        "norm_topk_prob": experts.routing.normalize,
        "routed_scaling_factor": experts.routing.scale,
        "use_expert_bias": experts.routing.choice_bias,
    }
