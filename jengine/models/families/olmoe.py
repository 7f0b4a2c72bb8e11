"""OLMoE: experts on every layer; QK-norm over all heads."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import ExpertsConfig, LayerConfig, ModelConfig, RoutingConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    Defaults,
    read_attention,
    read_decoder,
    read_experts_count,
    read_mlp,
    read_num_layers,
)
from jengine.models.reading.hf_layers import expect_uniform_layers
from jengine.models.reading.hf_write import write_decoder, written_attention, written_experts
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


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    if fields.values.get("clip_qkv") is not None:
        fields.refuse("clip_qkv", "null, as in all published OLMoE: clipping is not built")
    num_layers = read_num_layers(fields, DEFAULTS)
    expect_uniform_layers(fields, num_layers, "full")
    bias = fields.flag("attention_bias", False)
    attention = read_attention(fields, DEFAULTS, qkv_bias=bias, output_bias=bias, qk_norm="whole")
    mlp = read_mlp(fields, DEFAULTS)
    experts = ExpertsConfig(
        *read_experts_count(fields, 64, 8, "num_experts", "num_local_experts"),
        intermediate_size=mlp.intermediate_size,
        activation=mlp.activation,
        routing=RoutingConfig(normalize=fields.flag("norm_topk_prob", False)),
    )
    return read_decoder(fields, DEFAULTS, (LayerConfig(attention, experts),) * num_layers)


def write_config(config: ModelConfig) -> dict[str, object]:
    experts = written_experts(config)
    return {
        **write_decoder(config),
        "model_type": "olmoe",
        "attention_bias": written_attention(config).qkv_bias,
        "pad_token_id": None,  # that of transformers is outside of small vocabularies
        "num_experts": experts.num_experts,
        "num_experts_per_tok": experts.experts_per_token,
        "norm_topk_prob": experts.routing.normalize,
    }
