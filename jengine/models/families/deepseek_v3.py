"""DeepSeek-V3 and R1, Kimi K2, Moonlight: latent attention, dense first layers, then experts."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import LatentConfig, LayerConfig, ModelConfig
from jengine.models.families.deepseek_experts import read_experts, write_experts
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults, read_decoder, read_mlp, read_num_layers
from jengine.models.reading.hf_latent import read_dense_layers, read_latent, write_latent
from jengine.models.tensors.checkpoint import DraftingNames, Names

ARCHITECTURES = ("DeepseekV3ForCausalLM",)
MODELS = "DeepSeek-V3, DeepSeek-R1, Kimi K2, Moonlight"
NAMES = Names(drafting=DraftingNames())
DEFAULTS = Defaults(
    vocab_size=129280,
    hidden_size=7168,
    intermediate_size=18432,
    num_layers=61,
    num_heads=128,
    num_kv_heads=128,
    head_dim=None,
    max_position=4096,
    bos_token_id=0,
    eos_token_id=1,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    layers, latent = read_num_layers(fields, DEFAULTS), read_latent(fields, DEFAULTS)
    mlp = read_mlp(fields, DEFAULTS)
    fields.choice("scoring_func", "sigmoid", {"sigmoid": None})
    fields.choice("topk_method", "noaux_tc", {"noaux_tc": None})
    dense = read_dense_layers(fields, 3, layers)
    experts = read_experts(
        fields,
        mlp.activation,
        experts=256,
        per_token=8,
        inner=2048,
        scale=2.5,
        groups=8,
        top_groups=4,
    )
    ffns = [mlp if layer < dense else experts for layer in range(layers)]
    return read_decoder(fields, DEFAULTS, tuple(LayerConfig(latent, ffn) for ffn in ffns))


def write_config(config: ModelConfig) -> dict[str, object]:
    latent = config.layers[0].mixer
    family = {
        "model_type": "deepseek_v3",
        "rope_interleave": isinstance(latent, LatentConfig) and latent.interleaved,
        "num_nextn_predict_layers": 0,
    }
    if not config.has_experts:
        return {**write_latent(config), **family, "first_k_dense_replace": len(config.layers)}
    return {**write_latent(config), **family, **write_experts(config)}
