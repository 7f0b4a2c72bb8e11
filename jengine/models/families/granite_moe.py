"""Granite 3 with experts on every layer and, in some, a shared MLP."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import ModelConfig
from jengine.models.families import granite
from jengine.models.reading.keys import ExpertKeys, integer
from jengine.models.reading.plain_decoder import ATTENTION_BIAS
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
EXPERTS = ExpertKeys(8, 2, ("num_local_experts", "num_experts"))
PLAIN = granite.PLAIN._replace(model_type="granitemoe", biases=(ATTENTION_BIAS,), experts=EXPERTS)
SHARED_SIZE = {"shared_size": integer("shared_intermediate_size", 0, minimum=0)}
SHARED_PLAIN = PLAIN._replace(
    model_type="granitemoeshared", experts=EXPERTS._replace(keys=SHARED_SIZE)
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    return (SHARED_PLAIN if hf["architectures"] == [SHARED] else PLAIN).read_config(hf)


def write_config(config: ModelConfig) -> dict[str, object]:
    return (SHARED_PLAIN if config.architecture == SHARED else PLAIN).write_config(config)
