"""Granite 4: Mamba-2 in most layers, attention (mostly unrotated) in the others, and a shared MLP
with or without experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import ExpertsConfig, LayerConfig, MlpConfig, ModelConfig
from jengine.models.families import granite
from jengine.models.families.granite_moe import NAMES as GRANITE_MOE
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import MOST_EXPERTS, read_mlp
from jengine.models.reading.hf_layers import read_layer_types
from jengine.models.reading.hf_mamba import KINDS, read_mamba2, write_kinds, write_mamba2
from jengine.models.reading.hf_write import written_attention, written_ffn
from jengine.models.reading.keys import ExpertKeys, integer, read_fields
from jengine.models.reading.plain_decoder import ATTENTION_BIAS, UNSAID
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("GraniteMoeHybridForCausalLM",)
MODELS = "Granite 4"
NAMES: Names = replace(
    GRANITE_MOE, gate_up=("shared_mlp.input_linear",), down="shared_mlp.output_linear"
)
PLAIN = granite.PLAIN._replace(
    model_type="granitemoehybrid", biases=(ATTENTION_BIAS,), windows=UNSAID
)
EXPERTS = ExpertKeys(
    8, 2, ("num_local_experts",), {"shared_size": integer("shared_intermediate_size", 1024)}
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields({"layer_types" if key == "layers_block_type" else key: hf[key] for key in hf})
    config = PLAIN.read_config(fields.values)
    num_layers, attention = len(config.layers), written_attention(config)
    if not _is_rotated(fields):
        attention = replace(attention, rope=None)
    mamba = read_mamba2(fields, config.hidden_size)
    kinds = ["recurrent"] * num_layers
    if fields.values.get("layer_types") is not None:
        kinds = read_layer_types(fields, num_layers, KINDS)
    ffn = _read_ffn(fields)
    mixers = [attention if kind == "full" else mamba for kind in kinds]
    return replace(config, layers=tuple(LayerConfig(mixer, ffn) for mixer in mixers))


def write_config(config: ModelConfig) -> dict[str, object]:
    ffn, has_rope = written_ffn(config), written_attention(config).rope is not None
    if isinstance(ffn, ExpertsConfig):
        sizes = EXPERTS.write_one(ffn)
    else:
        sizes = {"num_local_experts": 0, "shared_intermediate_size": ffn.intermediate_size}
    return {
        **PLAIN.write_config(config),
        **write_mamba2(config),
        **sizes,
        "position_embedding_type": "rope" if has_rope else "nope",
        "layer_types": write_kinds(config),
    }


def _is_rotated(fields: Fields) -> bool:
    if fields.values.get("position_embedding_type") is None:
        return False
    return fields.choice("position_embedding_type", "nope", {"rope": True, "nope": False})


def _read_ffn(fields: Fields) -> ExpertsConfig | MlpConfig:
    mlp = read_mlp(fields, granite.DEFAULTS)
    if fields.integer("num_local_experts", 8, minimum=0, maximum=MOST_EXPERTS):
        return EXPERTS.read(fields, mlp)
    return replace(mlp, intermediate_size=read_fields(fields, EXPERTS.keys)["shared_size"])
