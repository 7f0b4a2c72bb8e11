"""StarCoder2: layer norms, an ungated MLP, biases everywhere, one sliding window for all layers."""

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
from jengine.models.reading.hf_write import write_decoder, written_biases, written_window
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("Starcoder2ForCausalLM",)
MODELS = "StarCoder2"
NAMES = Names(gate_up=("mlp.c_fc",), down="mlp.c_proj")
DEFAULTS = Defaults(
    vocab_size=49152,
    hidden_size=3072,
    intermediate_size=12288,
    num_layers=30,
    num_heads=24,
    num_kv_heads=2,
    head_dim=None,
    max_position=4096,
    norm_eps=1e-5,
    norm_eps_key="norm_epsilon",
    activation="gelu_pytorch_tanh",
    tie_embeddings=True,
    initializer_range=0.018042,
    bos_token_id=50256,
    eos_token_id=50256,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    num_layers = read_num_layers(fields, DEFAULTS)
    window = fields.optional_integer("sliding_window", None)
    expect_uniform_layers(fields, num_layers, "full" if window is None else "sliding")
    bias = fields.flag("use_bias", True)
    attention = read_attention(fields, DEFAULTS, qkv_bias=bias, output_bias=bias)
    mlp = replace(read_mlp(fields, DEFAULTS), gated=False, biases=bias)
    layer = LayerConfig(replace(attention, window=window), mlp)
    return replace(read_decoder(fields, DEFAULTS, (layer,) * num_layers), norm="layer")


def write_config(config: ModelConfig) -> dict[str, object]:
    return {
        **write_decoder(config, DEFAULTS.norm_eps_key),
        "model_type": "starcoder2",
        "sliding_window": written_window(config),
        "use_bias": written_biases(config),
    }
