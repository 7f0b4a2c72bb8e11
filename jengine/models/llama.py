"""Llama 2 and 3: full attention on every layer, optional rope scaling."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import LayerConfig, ModelConfig
from jengine.models.checkpoint import Names
from jengine.models.fields import Fields
from jengine.models.hf_config import (
    Defaults,
    expect_uniform_layers,
    read_attention,
    read_decoder,
    read_mlp,
    read_num_layers,
)
from jengine.models.hf_write import write_decoder, written_attention

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
    attention = read_attention(fields, DEFAULTS, qkv_bias=bias, output_bias=bias)
    layer = LayerConfig(attention, read_mlp(fields, DEFAULTS))
    return read_decoder(fields, DEFAULTS, (layer,) * num_layers)


def write_config(config: ModelConfig) -> dict[str, object]:
    """The inverse of `read_config`."""
    bias = written_attention(config).qkv_bias
    family = {"model_type": "llama", "attention_bias": bias, "mlp_bias": False}
    return {**write_decoder(config), **family}
