"""Granite 3 with experts on every layer and, in some, a shared MLP."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import ExpertsConfig, LayerConfig, ModelConfig
from jengine.models.families.granite import (
    DEFAULTS,
    read_granite,
    read_granite_attention,
    write_granite,
)
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import read_experts_count, read_mlp, read_num_layers
from jengine.models.reading.hf_layers import expect_uniform_layers
from jengine.models.reading.hf_write import written_experts
from jengine.models.tensors.checkpoint import Names

SHARED = "GraniteMoeSharedForCausalLM"
ARCHITECTURES = ("GraniteMoeForCausalLM", SHARED)
MODELS = "Granite 3 MoE"
NAMES = Names(
    router="block_sparse_moe.router.layer",
    expert_gate_up=("block_sparse_moe.input_linear.weight",),
    expert_down="block_sparse_moe.output_linear.weight",
    expert_layout="outputs_first",
    shared_gate_up=("shared_mlp.input_linear",),
    shared_down="shared_mlp.output_linear",
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    num_layers = read_num_layers(fields, DEFAULTS)
    expect_uniform_layers(fields, num_layers, "full")
    mlp = read_mlp(fields, DEFAULTS)
    has_shared = SHARED in (fields.values.get("architectures") or ())
    experts = ExpertsConfig(
        *read_experts_count(fields, 8, 2, "num_local_experts", "num_experts"),
        intermediate_size=mlp.intermediate_size,
        activation=mlp.activation,
        shared_size=fields.integer("shared_intermediate_size", 0, minimum=0) if has_shared else 0,
    )
    layer = LayerConfig(read_granite_attention(fields, DEFAULTS), experts)
    return read_granite(fields, DEFAULTS, (layer,) * num_layers)


def write_config(config: ModelConfig) -> dict[str, object]:
    experts = written_experts(config)
    shared = {"shared_intermediate_size": experts.shared_size}
    return {
        **write_granite(config),
        **(shared if config.architecture == SHARED else {}),
        "model_type": "granitemoeshared" if config.architecture == SHARED else "granitemoe",
        "num_local_experts": experts.num_experts,
        "num_experts_per_tok": experts.experts_per_token,
    }
