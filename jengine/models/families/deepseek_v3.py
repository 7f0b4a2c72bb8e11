"""DeepSeek-V3 and R1, Kimi K2, Moonlight: latent attention, dense first layers, then experts."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import ModelConfig
from jengine.models.families.deepseek_experts import GroupedExperts, behind_first
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.hf_latent import LatentDecoder
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
PLAIN = LatentDecoder(
    "deepseek_v3",
    DEFAULTS,
    GroupedExperts(256, 8, behind_first(3), inner=2048, scale=2.5, groups=8, top_groups=4),
    also_written={"num_nextn_predict_layers": 0},
)
write_config = PLAIN.write_config


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    fields.choice("scoring_func", "sigmoid", {"sigmoid": None})
    fields.choice("topk_method", "noaux_tc", {"noaux_tc": None})
    return PLAIN.read_config(hf)
