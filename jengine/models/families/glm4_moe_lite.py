"""GLM-4.7-Flash: latent attention, dense first layers, then experts as in DeepSeek-V3."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import ExpertsConfig, LatentConfig, LayerConfig, ModelConfig
from jengine.models.families.deepseek_experts import read_experts, write_experts
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults, read_decoder, read_mlp, read_num_layers
from jengine.models.reading.hf_latent import read_dense_layers, read_latent, write_latent
from jengine.models.tensors.checkpoint import DraftingNames, Names

ARCHITECTURES = ("Glm4MoeLiteForCausalLM",)
MODELS = "GLM-4.7-Flash"
NAMES = Names(drafting=DraftingNames())
DEFAULTS = Defaults(
    vocab_size=154880,
    hidden_size=2048,
    intermediate_size=10240,
    num_layers=47,
    num_heads=20,
    num_kv_heads=20,
    head_dim=None,
    max_position=202752,
    norm_eps=1e-5,
    bos_token_id=0,
    eos_token_id=1,
)
# What config.json leaves out of latent attention, where it differs from DeepSeek's.
LATENT = {"q_lora_rank": 768, "v_head_dim": 256, "qk_nope_head_dim": 192}


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields({**LATENT, **hf})
    num_layers, latent = read_num_layers(fields, DEFAULTS), read_latent(fields, DEFAULTS)
    mlp = read_mlp(fields, DEFAULTS)
    experts = read_experts(fields, mlp.activation, experts=64, per_token=4, inner=1536, scale=1.8)
    dense = dense_layers(fields, num_layers)
    ffns = [mlp if layer in dense else experts for layer in range(num_layers)]
    return read_decoder(fields, DEFAULTS, tuple(LayerConfig(latent, ffn) for ffn in ffns))


def write_config(config: ModelConfig) -> dict[str, object]:
    latent = config.layers[0].mixer
    is_sparse = [isinstance(layer.ffn, ExpertsConfig) for layer in config.layers]
    return {
        **write_latent(config),
        **write_experts(config),
        "model_type": "glm4_moe_lite",
        "rope_interleave": isinstance(latent, LatentConfig) and latent.interleaved,
        "mlp_layer_types": ["sparse" if sparse else "dense" for sparse in is_sparse],
        "num_nextn_predict_layers": 0,
    }


def dense_layers(fields: Fields, num_layers: int) -> set[int]:
    """Indices of dense layers, from `mlp_layer_types` or a count of leading ones."""
    kinds = fields.values.get("mlp_layer_types")
    if kinds is None:
        return set(range(read_dense_layers(fields, 1, num_layers)))
    if not isinstance(kinds, list) or len(kinds) != num_layers or {*kinds} - {"dense", "sparse"}:
        fields.refuse("mlp_layer_types", f"{num_layers} times 'dense' or 'sparse'")
    return {layer for layer, kind in enumerate(kinds) if kind == "dense"}
