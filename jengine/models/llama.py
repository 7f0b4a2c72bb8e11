"""Llama 2 and 3: full attention on every layer, rotary positions optionally stretched."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import ModelConfig
from jengine.models.checkpoint import Names
from jengine.models.fields import Fields
from jengine.models.hf_config import (
    Defaults,
    expect_uniform_layers,
    read_decoder,
    read_num_layers,
    write_decoder,
)

ARCHITECTURES = ("LlamaForCausalLM",)
MODELS = "Llama 2, Llama 3"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=32000,
    hidden_size=4096,
    intermediate_size=11008,
    num_layers=32,
    num_heads=32,
    num_kv_heads=None,
    head_dim=None,
    max_position=2048,
    bos_token_id=1,
    eos_token_id=2,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    """The decoder that a Llama config.json describes."""
    fields = Fields(hf)
    if fields.flag("mlp_bias", False):
        fields.refuse("mlp_bias", "false: biases in the MLP are not supported")
    num_layers = read_num_layers(fields, DEFAULTS)
    expect_uniform_layers(fields, num_layers, "full")
    bias = fields.flag("attention_bias", False)
    windows = (None,) * num_layers
    return read_decoder(fields, DEFAULTS, windows=windows, qkv_bias=bias, output_bias=bias)


def write_config(config: ModelConfig) -> dict[str, object]:
    """The inverse of `read_config`."""
    family = {"model_type": "llama", "attention_bias": config.qkv_bias, "mlp_bias": False}
    return {**write_decoder(config), **family}
