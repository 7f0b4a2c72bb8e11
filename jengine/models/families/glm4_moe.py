"""GLM-4.5 and GLM-4.6: partly rotated heads; after some dense layers, many small experts with a
shared one and biased sigmoid routing.
"""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import LayerConfig, ModelConfig
from jengine.models.families.deepseek_experts import read_experts, write_experts
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    Defaults,
    read_attention,
    read_decoder,
    read_mlp,
    read_num_layers,
)
from jengine.models.reading.hf_layers import expect_uniform_layers
from jengine.models.reading.hf_rope import PARTIAL
from jengine.models.reading.hf_write import write_decoder, written_attention
from jengine.models.tensors.checkpoint import DraftingNames, Names

ARCHITECTURES = ("Glm4MoeForCausalLM",)
MODELS = "GLM-4.5, GLM-4.6"
NAMES = Names(drafting=DraftingNames())
DEFAULTS = Defaults(
    vocab_size=151552,
    hidden_size=4096,
    intermediate_size=10944,
    num_layers=46,
    num_heads=96,
    num_kv_heads=8,
    head_dim=128,
    max_position=131072,
    norm_eps=1e-5,
    partial_rotary=0.5,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    num_layers = read_num_layers(fields, DEFAULTS)
    expect_uniform_layers(fields, num_layers, "full")
    attention = read_attention(
        fields,
        DEFAULTS,
        qkv_bias=fields.flag("attention_bias", False),
        qk_norm="head" if fields.flag("use_qk_norm", False) else None,
    )
    mlp = read_mlp(fields, DEFAULTS)
    experts = read_experts(fields, mlp.activation, experts=128, per_token=8)
    dense = fields.integer("first_k_dense_replace", 1, minimum=0)
    ffns = [mlp if layer < dense else experts for layer in range(num_layers)]
    return read_decoder(fields, DEFAULTS, tuple(LayerConfig(attention, ffn) for ffn in ffns))


def write_config(config: ModelConfig) -> dict[str, object]:
    attention = written_attention(config)
    written = write_decoder(config)
    return {
        **written,
        PARTIAL: written.get(PARTIAL, 1.0),
        **write_experts(config),
        "model_type": "glm4_moe",
        "attention_bias": attention.qkv_bias,
        "use_qk_norm": attention.qk_norm is not None,
        "num_nextn_predict_layers": 0,
    }
