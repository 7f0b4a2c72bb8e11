"""OLMoE: experts on every layer; QK-norm over all heads."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import ExpertsConfig, ModelConfig, RoutingConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults, read_experts_count
from jengine.models.reading.hf_write import written_experts, written_ffn
from jengine.models.reading.plain_decoder import ATTENTION_BIAS, PlainDecoder, with_blocks
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
PLAIN = PlainDecoder("olmoe", DEFAULTS, (ATTENTION_BIAS,), attention={"qk_norm": "whole"})


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    if fields.values.get("clip_qkv") is not None:
        fields.refuse("clip_qkv", "null, as in all published OLMoE: clipping is not built")
    config = PLAIN.read_config(hf)
    mlp = written_ffn(config)
    experts = ExpertsConfig(
        *read_experts_count(fields, 64, 8, "num_experts", "num_local_experts"),
        intermediate_size=mlp.intermediate_size,
        activation=mlp.activation,
        routing=RoutingConfig(normalize=fields.flag("norm_topk_prob", False)),
    )
    return with_blocks(config, [experts] * len(config.layers))


def write_config(config: ModelConfig) -> dict[str, object]:
    experts = written_experts(config)
    return {
        **PLAIN.write_config(config),
        "pad_token_id": None,  # that of transformers is outside of small vocabularies
        "num_experts": experts.num_experts,
        "num_experts_per_tok": experts.experts_per_token,
        "norm_topk_prob": experts.routing.normalize,
    }
