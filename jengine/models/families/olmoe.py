"""OLMoE: experts on every layer; QK-norm over all heads."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.keys import ExpertKeys, flag
from jengine.models.reading.plain_decoder import ATTENTION_BIAS, PlainDecoder
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("OlmoeForCausalLM",)
MODELS = "OLMoE"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=50304,
    hidden_size=2048,
    intermediate_size=2048,
    num_layers=16,
    num_heads=16,
    num_kv_heads=None,
    head_dim=None,
    max_position=4096,
    norm_eps=1e-5,
    eos_token_id=50279,
)
PLAIN = PlainDecoder(
    "olmoe",
    DEFAULTS,
    (ATTENTION_BIAS,),
    attention={"qk_norm": "whole"},
    experts=ExpertKeys(
        64,
        8,
        ("num_experts", "num_local_experts"),
        {},
        {"normalize": flag("norm_topk_prob", False)},
    ),
    also_written={"pad_token_id": None},  # transformers' default exceeds small vocabularies
)
write_config = PLAIN.write_config


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    if fields.values.get("clip_qkv") is not None:
        fields.refuse("clip_qkv", "null, as in all published OLMoE: clipping is not built")
    return PLAIN.read_config(hf)
