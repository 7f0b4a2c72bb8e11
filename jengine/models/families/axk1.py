"""A.X K1: DeepSeek-V3 with a norm of what experts make together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import LayerConfig, ModelConfig
from jengine.models.families import glm4_moe_lite
from jengine.models.families.deepseek_experts import read_experts
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults, read_decoder, read_mlp, read_num_layers
from jengine.models.reading.hf_latent import read_latent
from jengine.models.tensors.checkpoint import DraftingNames, IgnoredTensor, Names

ARCHITECTURES = ("AXK1ForCausalLM",)
MODELS = "A.X K1"
NAMES = Names(
    experts_norm="post_mlp_layernorm",
    choice_bias_optional=True,
    drafting=DraftingNames(),
    ignored=(
        IgnoredTensor(
            r"model\.layers\.\d+\.post_mlp_layernorm\.weight",
            "files hold a norm of dense layers, too, which these do not use",
        ),
    ),
)
DEFAULTS = Defaults(
    vocab_size=163840,
    hidden_size=7168,
    intermediate_size=18432,
    num_layers=61,
    num_heads=64,
    num_kv_heads=64,
    head_dim=None,
    max_position=32768,
    bos_token_id=163691,
    eos_token_id=163691,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    fields.integer("q_lora_rank", 1536)  # queries are always made of a short vector
    layers, latent = read_num_layers(fields, DEFAULTS), read_latent(fields, DEFAULTS)
    mlp = read_mlp(fields, DEFAULTS)
    experts = read_experts(
        fields, mlp.activation, experts=192, per_token=8, inner=2048, scale=2.5, groups=8,
        top_groups=4,
    )  # fmt: skip
    experts, dense = replace(experts, out_norm=True), glm4_moe_lite.dense_layers(fields, layers)
    ffns = [mlp if layer in dense else experts for layer in range(layers)]
    return read_decoder(fields, DEFAULTS, tuple(LayerConfig(latent, ffn) for ffn in ffns))


def write_config(config: ModelConfig) -> dict[str, object]:
    return {**glm4_moe_lite.write_config(config), "model_type": "axk1"}
