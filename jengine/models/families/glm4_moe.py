"""GLM-4.5 and GLM-4.6: partly rotated heads; after some dense layers, many small experts with a
shared one and biased sigmoid routing.
"""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import ModelConfig
from jengine.models.families.deepseek_experts import read_experts, write_experts
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.hf_write import written_ffn
from jengine.models.reading.keys import flag
from jengine.models.reading.plain_decoder import BiasKey, PlainDecoder, with_blocks
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
PLAIN = PlainDecoder(
    "glm4_moe",
    DEFAULTS,
    (BiasKey("attention_bias", ("qkv",)),),
    attention_keys={"qk_norm": flag("use_qk_norm", False, true="head", false=None)},
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    config = PLAIN.read_config(hf)
    mlp = written_ffn(config)
    experts = read_experts(fields, mlp.activation, experts=128, per_token=8)
    dense = fields.integer("first_k_dense_replace", 1, minimum=0)
    layers = range(len(config.layers))
    return with_blocks(config, [mlp if layer < dense else experts for layer in layers])


def write_config(config: ModelConfig) -> dict[str, object]:
    return {
        **PLAIN.write_config(config),
        **write_experts(config),
        "num_nextn_predict_layers": 0,
    }
