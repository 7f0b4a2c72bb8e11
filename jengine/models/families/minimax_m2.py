"""MiniMax-M2: many small experts with biased sigmoid routing on all layers, partly rotated heads,
and QK-norm over all heads.
"""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import ExpertsConfig, LayerConfig, ModelConfig, RoutingConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    Defaults,
    read_activation,
    read_attention,
    read_decoder,
    read_experts_count,
    read_num_layers,
)
from jengine.models.reading.hf_layers import expect_uniform_layers
from jengine.models.reading.hf_rope import PARTIAL
from jengine.models.reading.hf_write import write_decoder, written_attention, written_experts
from jengine.models.tensors.checkpoint import DraftingNames, Names

ARCHITECTURES = ("MiniMaxM2ForCausalLM",)
MODELS = "MiniMax-M2"
NAMES = Names(
    router="block_sparse_moe.gate",
    choice_bias="block_sparse_moe.e_score_correction_bias",
    experts="block_sparse_moe.experts",
    expert_gate_up=("w1", "w3"),
    expert_down="w2",
    drafting=DraftingNames(),
)
DEFAULTS = Defaults(
    vocab_size=200064,
    hidden_size=3072,
    intermediate_size=1536,
    num_layers=62,
    num_heads=48,
    num_kv_heads=8,
    head_dim=128,
    max_position=196608,
    partial_rotary=1.0,
    rope_theta=5000000.0,
    bos_token_id=200034,
    eos_token_id=200020,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    if hf.get("rotary_dim") is not None and hf.get("rope_parameters") is None:
        head_dim = fields.integer("head_dim", DEFAULTS.head_dim)
        rotated = fields.integer("rotary_dim", maximum=head_dim)
        fields = Fields({**hf, PARTIAL: rotated / head_dim})
    fields.choice("scoring_func", "sigmoid", {"sigmoid": None})
    if fields.optional_integer("shared_intermediate_size", 0, minimum=0):
        fields.refuse("shared_intermediate_size", "0: an MLP that all tokens take is not built")
    num_layers = read_num_layers(fields, DEFAULTS)
    expect_uniform_layers(fields, num_layers, "full")
    attention = read_attention(fields, DEFAULTS, qk_norm="whole")
    count, chosen = read_experts_count(fields, 256, 8, "num_local_experts", "num_experts")
    experts = ExpertsConfig(
        count,
        chosen,
        fields.integer("intermediate_size", DEFAULTS.intermediate_size),
        read_activation(fields, DEFAULTS.activation_key, DEFAULTS.activation),
        RoutingConfig(scores="sigmoid", choice_bias=True),
    )
    return read_decoder(fields, DEFAULTS, (LayerConfig(attention, experts),) * num_layers)


def write_config(config: ModelConfig) -> dict[str, object]:
    written, experts = write_decoder(config), written_experts(config)
    rope = written_attention(config).rope
    rotated = None if rope is None else rope.rotated
    return {
        **written,
        PARTIAL: written.get(PARTIAL, 1.0),
        **({} if rotated is None else {"rotary_dim": rotated}),
        "model_type": "minimax_m2",
        "num_local_experts": experts.num_experts,
        "num_experts_per_tok": experts.experts_per_token,
    }
