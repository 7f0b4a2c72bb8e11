"""Qwen3-MoE: Qwen3 with experts on all or some layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import ExpertsConfig, LayerConfig, MlpConfig, ModelConfig, RoutingConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    MOST_EXPERTS,
    Defaults,
    read_attention,
    read_decoder,
    read_mlp,
    read_num_layers,
)
from jengine.models.reading.hf_layers import expect_uniform_layers
from jengine.models.reading.hf_write import write_decoder, written_attention, written_window
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("Qwen3MoeForCausalLM",)
MODELS = "Qwen3 MoE"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=151936,
    hidden_size=2048,
    intermediate_size=6144,
    num_layers=24,
    num_heads=32,
    num_kv_heads=4,
    head_dim=None,
    max_position=32768,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    num_layers = read_num_layers(fields, DEFAULTS)
    sliding = fields.flag("use_sliding_window", False)
    window = fields.optional_integer("sliding_window", 4096) if sliding else None
    expect_uniform_layers(fields, num_layers, "full" if window is None else "sliding")
    bias = fields.flag("attention_bias", False)
    attention = read_attention(fields, DEFAULTS, qkv_bias=bias, output_bias=bias, qk_norm="head")
    attention = replace(attention, window=window)
    mlp = read_mlp(fields, DEFAULTS)
    experts = _read_experts(fields, mlp)
    sparse = layers_with_experts(fields, num_layers)
    ffns = [experts if layer in sparse else mlp for layer in range(num_layers)]
    return read_decoder(fields, DEFAULTS, tuple(LayerConfig(attention, ffn) for ffn in ffns))


def write_config(config: ModelConfig) -> dict[str, object]:
    window = written_window(config)
    family: dict[str, object] = {
        "model_type": "qwen3_moe",
        "attention_bias": written_attention(config).qkv_bias,
        "use_sliding_window": window is not None,
        "sliding_window": window,
    }
    ffns = [layer.ffn for layer in config.layers]
    experts = next((ffn for ffn in ffns if isinstance(ffn, ExpertsConfig)), None)
    if experts is not None:
        family |= {
            "num_experts": experts.num_experts,
            "num_experts_per_tok": experts.experts_per_token,
            "moe_intermediate_size": experts.intermediate_size,
            "norm_topk_prob": experts.routing.normalize,
        }
    dense = [layer for layer, ffn in enumerate(ffns) if not isinstance(ffn, ExpertsConfig)]
    family |= {"mlp_only_layers": dense, "decoder_sparse_step": 1}
    return {**write_decoder(config), **family}


def _read_experts(fields: Fields, mlp: MlpConfig) -> ExpertsConfig:
    # transformers 5 writes the second name.
    key = "num_experts" if "num_experts" in fields.values else "num_local_experts"
    experts = fields.integer(key, 128, maximum=MOST_EXPERTS)
    return ExpertsConfig(
        num_experts=experts,
        experts_per_token=fields.integer("num_experts_per_tok", 8, maximum=experts),
        intermediate_size=fields.integer("moe_intermediate_size", 768),
        activation=mlp.activation,
        routing=RoutingConfig(normalize=fields.flag("norm_topk_prob", False)),
    )


def layers_with_experts(fields: Fields, num_layers: int) -> set[int]:
    dense = fields.integers("mlp_only_layers", None, maximum=num_layers - 1, each="a layer")
    step = fields.integer("decoder_sparse_step", 1)
    return {layer for layer in range(num_layers) if layer not in dense and (layer + 1) % step == 0}
