"""Granite 4: Mamba-2 in most layers, attention (mostly unrotated) in the others, and a shared MLP
with or without experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import ExpertsConfig, LayerConfig, MlpConfig, ModelConfig
from jengine.models.families.granite import (
    DEFAULTS,
    read_granite,
    read_granite_attention,
    write_granite,
)
from jengine.models.families.granite_moe import NAMES as GRANITE_MOE
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import MOST_EXPERTS, read_mlp, read_num_layers
from jengine.models.reading.hf_layers import read_layer_types
from jengine.models.reading.hf_mamba import KINDS, read_mamba2, write_kinds, write_mamba2
from jengine.models.reading.hf_write import written_attention, written_ffn
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("GraniteMoeHybridForCausalLM",)
MODELS = "Granite 4"
NAMES: Names = replace(
    GRANITE_MOE, gate_up=("shared_mlp.input_linear",), down="shared_mlp.output_linear"
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields({"layer_types" if key == "layers_block_type" else key: hf[key] for key in hf})
    num_layers = read_num_layers(fields, DEFAULTS)
    attention = read_granite_attention(fields, DEFAULTS)
    if not _is_rotated(fields):
        attention = replace(attention, rope=None)
    mamba = read_mamba2(fields, fields.integer("hidden_size", DEFAULTS.hidden_size))
    kinds = ["recurrent"] * num_layers
    if fields.values.get("layer_types") is not None:
        kinds = read_layer_types(fields, num_layers, KINDS)
    ffn = _read_ffn(fields)
    mixers = [attention if kind == "full" else mamba for kind in kinds]
    return read_granite(fields, DEFAULTS, tuple(LayerConfig(mixer, ffn) for mixer in mixers))


def write_config(config: ModelConfig) -> dict[str, object]:
    ffn, has_rope = written_ffn(config), written_attention(config).rope is not None
    if isinstance(ffn, ExpertsConfig):
        sizes = {
            "num_local_experts": ffn.num_experts,
            "num_experts_per_tok": ffn.experts_per_token,
            "intermediate_size": ffn.intermediate_size,
            "shared_intermediate_size": ffn.shared_size,
        }
    else:
        sizes = {"num_local_experts": 0, "shared_intermediate_size": ffn.intermediate_size}
    return {
        **write_granite(config),
        **write_mamba2(config),
        **sizes,
        "model_type": "granitemoehybrid",
        "position_embedding_type": "rope" if has_rope else "nope",
        "layer_types": write_kinds(config),
    }


def _is_rotated(fields: Fields) -> bool:
    if fields.values.get("position_embedding_type") is None:
        return False
    return fields.choice("position_embedding_type", "nope", {"rope": True, "nope": False})


def _read_ffn(fields: Fields) -> ExpertsConfig | MlpConfig:
    mlp = read_mlp(fields, DEFAULTS)
    experts = fields.integer("num_local_experts", 8, minimum=0, maximum=MOST_EXPERTS)
    shared = fields.integer("shared_intermediate_size", 1024)
    if not experts:
        return replace(mlp, intermediate_size=shared)
    return ExpertsConfig(
        experts,
        fields.integer("num_experts_per_tok", 2, maximum=experts),
        intermediate_size=mlp.intermediate_size,
        activation=mlp.activation,
        shared_size=shared,
    )
