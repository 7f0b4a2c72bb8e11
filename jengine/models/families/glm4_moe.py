"""GLM-4.5 and GLM-4.6: partly rotated heads; after some dense layers, many small experts with a
shared one and biased sigmoid routing.
"""

from __future__ import annotations

from jengine.models.families.deepseek_experts import GroupedExperts
from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.keys import behind_dense, flag
from jengine.models.reading.plain_decoder import BiasKey, PlainDecoder
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
    experts=GroupedExperts(128, 8, behind_dense("first_k_dense_replace", 1)),
    also_written={"num_nextn_predict_layers": 0},
)
read_config, write_config = PLAIN.read_config, PLAIN.write_config
