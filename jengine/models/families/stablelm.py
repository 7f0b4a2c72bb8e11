"""StableLM: layer norms, partly rotated heads and, in some models, a parallel block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import LayerConfig, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    Defaults,
    read_attention,
    read_decoder,
    read_mlp,
    read_num_layers,
)
from jengine.models.reading.hf_layers import expect_uniform_layers
from jengine.models.reading.hf_rope import PARTIAL
from jengine.models.reading.hf_write import write_decoder, written_attention
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("StableLmForCausalLM",)
MODELS = "StableLM 2, StableLM 3B"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=50304,
    hidden_size=2560,
    intermediate_size=6912,
    num_layers=32,
    num_heads=32,
    num_kv_heads=32,
    head_dim=None,
    max_position=4096,
    norm_eps=1e-5,
    norm_eps_key="layer_norm_eps",
    partial_rotary=0.25,
    bos_token_id=0,
    eos_token_id=0,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    if fields.flag("qk_layernorm", False):
        fields.refuse("qk_layernorm", "false: a norm with weights of its own per head is not built")
    num_layers = read_num_layers(fields, DEFAULTS)
    expect_uniform_layers(fields, num_layers, "full")
    attention = read_attention(fields, DEFAULTS, qkv_bias=fields.flag("use_qkv_bias", False))
    layer = LayerConfig(attention, read_mlp(fields, DEFAULTS))
    config = read_decoder(fields, DEFAULTS, (layer,) * num_layers)
    parallel = fields.flag("use_parallel_residual", False)
    return replace(config, norm="layer", block="parallel_one_norm" if parallel else "serial")


def write_config(config: ModelConfig) -> dict[str, object]:
    written = write_decoder(config, DEFAULTS.norm_eps_key)
    return {
        **written,
        "model_type": "stablelm",
        PARTIAL: written.get(PARTIAL, 1.0),
        "use_qkv_bias": written_attention(config).qkv_bias,
        "use_parallel_residual": config.block != "serial",
    }
