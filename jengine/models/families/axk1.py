"""A.X K1: DeepSeek-V3 with a norm on the combined output of the experts."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import ModelConfig
from jengine.models.families.deepseek_experts import GroupedExperts
from jengine.models.families.glm4_moe_lite import NAMED_LAYERS
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.hf_latent import LatentDecoder
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
PLAIN = LatentDecoder(
    "axk1",
    DEFAULTS,
    GroupedExperts(
        192, 8, NAMED_LAYERS, inner=2048, scale=2.5, groups=8, top_groups=4, out_norm=True
    ),
    also_written={"num_nextn_predict_layers": 0},
)
write_config = PLAIN.write_config


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    Fields(hf).integer("q_lora_rank", 1536)  # queries are always low-rank
    return PLAIN.read_config(hf)
