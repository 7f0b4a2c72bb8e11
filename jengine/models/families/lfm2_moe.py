"""LFM2 MoE: LFM2 with experts after the first layers, chosen by biased sigmoids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import MlpConfig, ModelConfig, RoutingConfig
from jengine.models.families import lfm2
from jengine.models.reading.fields import Fields
from jengine.models.reading.keys import ExpertKeys, behind_dense, flag, integer, number
from jengine.models.reading.plain_decoder import with_blocks

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
# Defaults that differ from LFM2's.
USUAL = {"hidden_size": 2048, "intermediate_size": 7168}
FIXED = {"block_auto_adjust_ff_dim": False}  # sizes are those of the matrices
EXPERTS = ExpertKeys(
    32,
    4,
    ("num_experts",),
    {"intermediate_size": integer("moe_intermediate_size", 1792)},
    {
        "normalize": flag("norm_topk_prob", True),
        "scale": number("routed_scaling_factor", 1.0),
        "choice_bias": flag("use_expert_bias", True),
    },
    RoutingConfig(scores="sigmoid"),
    {"activation": "silu"},
    behind_dense("num_dense_layers", 2),
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    config = lfm2.read_config({**USUAL, **hf, **FIXED})
    mlp = config.layers[0].ffn
    assert isinstance(mlp, MlpConfig), "LFM2 has no experts"
    return with_blocks(config, EXPERTS.read_blocks(Fields(hf), mlp, len(config.layers)))


def write_config(config: ModelConfig) -> dict[str, object]:
    return {**lfm2.write_config(config), "model_type": "lfm2_moe", **EXPERTS.write(config)}
