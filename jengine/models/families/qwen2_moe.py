"""Qwen2-MoE: experts on all or some layers, and a gated shared MLP."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import Activation, ExpertsConfig, ModelConfig, RoutingConfig
from jengine.models.families.qwen3_moe import layers_with_experts
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults, read_experts_count
from jengine.models.reading.hf_write import written_experts, written_ffn
from jengine.models.reading.plain_decoder import BiasKey, PlainDecoder, with_blocks
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
PLAIN = PlainDecoder("qwen2_moe", DEFAULTS, (BiasKey("qkv_bias", ("qkv",), True),))


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    fields.expect("use_sliding_window", False, ", as in all published Qwen2 MoE")
    config = PLAIN.read_config(hf)
    mlp, num_layers = written_ffn(config), len(config.layers)
    experts = read_shared_experts(
        fields, mlp.activation, experts=60, per_token=4, inner=1408, shared=5632, normalize=False
    )
    sparse = layers_with_experts(fields, num_layers)
    blocks = [experts if layer in sparse else mlp for layer in range(num_layers)]
    return with_blocks(config, blocks)


def write_config(config: ModelConfig) -> dict[str, object]:
    window = {"use_sliding_window": False}
    return {**PLAIN.write_config(config), **write_experts(config), **window}


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
