"""Qwen2-MoE: experts on all or some layers, and a gated shared MLP."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import Activation, ExpertsConfig, LayerConfig, ModelConfig, RoutingConfig
from jengine.models.families.qwen3_moe import layers_with_experts
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

ARCHITECTURES = ("Qwen2MoeForCausalLM",)
MODELS = "Qwen1.5 MoE, Qwen2 MoE"
NAMES = Names(
    shared_gate_up=("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
    shared_down="mlp.shared_expert.down_proj",
)
DEFAULTS = Defaults(
    vocab_size=151936,
    hidden_size=2048,
    intermediate_size=5632,
    num_layers=24,
    num_heads=16,
    num_kv_heads=16,
    head_dim=None,
    max_position=32768,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    if fields.flag("use_sliding_window", False):
        fields.refuse("use_sliding_window", "false, as in all published Qwen2 MoE")
    num_layers = read_num_layers(fields, DEFAULTS)
    expect_uniform_layers(fields, num_layers, "full")
    attention = read_attention(fields, DEFAULTS, qkv_bias=fields.flag("qkv_bias", True))
    mlp = read_mlp(fields, DEFAULTS)
    experts = read_shared_experts(
        fields, mlp.activation, experts=60, per_token=4, inner=1408, shared=5632, normalize=False
    )
    sparse = layers_with_experts(fields, num_layers)
    ffns = [experts if layer in sparse else mlp for layer in range(num_layers)]
    return read_decoder(fields, DEFAULTS, tuple(LayerConfig(attention, ffn) for ffn in ffns))


def write_config(config: ModelConfig) -> dict[str, object]:
    return {
        **write_decoder(config),
        **write_experts(config),
        "model_type": "qwen2_moe",
        "qkv_bias": written_attention(config).qkv_bias,
        "use_sliding_window": False,
    }


def read_shared_experts(
    fields: Fields, activation: Activation, *, experts: int, per_token: int, inner: int,
    shared: int, normalize: bool,
) -> ExpertsConfig:  # fmt: skip
    """Experts with a gated shared MLP; the sizes are defaults."""
    return ExpertsConfig(
        *read_experts_count(fields, experts, per_token, "num_experts", "num_local_experts"),
        intermediate_size=fields.integer("moe_intermediate_size", inner),
        activation=activation,
        routing=RoutingConfig(normalize=fields.flag("norm_topk_prob", normalize)),
        shared_size=fields.integer("shared_expert_intermediate_size", shared),
        shared_gate=True,
    )


def write_experts(config: ModelConfig) -> dict[str, object]:
    """Inverse of `read_shared_experts`, plus which layers have experts."""
    experts = written_experts(config)
    ffns = [layer.ffn for layer in config.layers]
    return {
        "num_experts": experts.num_experts,
        "num_experts_per_tok": experts.experts_per_token,
        "moe_intermediate_size": experts.intermediate_size,
        "shared_expert_intermediate_size": experts.shared_size,
        "norm_topk_prob": experts.routing.normalize,
        "mlp_only_layers": [i for i, ffn in enumerate(ffns) if not isinstance(ffn, ExpertsConfig)],
        "decoder_sparse_step": 1,
    }
