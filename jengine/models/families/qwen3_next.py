"""Qwen3-Next: gated delta nets in three of four layers, gated attention in the others, and experts
with a shared one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jengine.config import DeltaConfig, FfnConfig, LayerConfig, ModelConfig
from jengine.models.families.qwen2_moe import NAMES as QWEN2_MOE
from jengine.models.families.qwen2_moe import SMALL_EXPERTS
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    Defaults,
    read_attention,
    read_decoder,
    read_mlp,
    read_num_layers,
)
from jengine.models.reading.hf_delta import read_delta, read_delta_layers, write_delta
from jengine.models.reading.hf_write import write_decoder, written_attention
from jengine.models.tensors.checkpoint import DraftingNames, IgnoredTensor, Names

ARCHITECTURES = ("Qwen3NextForCausalLM",)
MODELS = "Qwen3-Next"
MTP = DraftingNames(
    root="mtp.",
    layer="layers.0.",
    matrix="fc",
    embed_norm="pre_fc_norm_embedding",
    hidden_norm="pre_fc_norm_hidden",
    last_norm="norm",
    usual=1,
    skips_first=False,
)
NAMES: Names = replace(
    QWEN2_MOE,
    recurrent="linear_attn",
    drafting=MTP,
    ignored=(IgnoredTensor(r"mtp\..*", "layers that draft tokens are not used"),),
)
DEFAULTS = Defaults(
    vocab_size=151936,
    hidden_size=2048,
    intermediate_size=5632,
    num_layers=48,
    num_heads=16,
    num_kv_heads=2,
    head_dim=256,
    max_position=32768,
    partial_rotary=0.25,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    mlp, num_layers = read_mlp(fields, DEFAULTS), read_num_layers(fields, DEFAULTS)
    ffns = SMALL_EXPERTS.read_blocks(fields, mlp, num_layers)
    return read_hybrid(fields, DEFAULTS, ffns, read_delta(fields))


def write_config(config: ModelConfig) -> dict[str, object]:
    experts = SMALL_EXPERTS.write(config)
    return {**write_hybrid(config), **experts, "model_type": "qwen3_next"}


def read_hybrid(
    fields: Fields, defaults: Defaults, ffns: Sequence[FfnConfig], delta: DeltaConfig
) -> ModelConfig:
    """Model of gated attention and gated delta nets, with these feed-forward blocks."""
    bias = fields.flag("attention_bias", False)
    attention = read_attention(fields, defaults, qkv_bias=bias, output_bias=bias, qk_norm="head")
    attention = replace(attention, gated=True)
    recurrent = read_delta_layers(fields, len(ffns))
    layers = (
        LayerConfig(delta if layer in recurrent else attention, ffn)
        for layer, ffn in enumerate(ffns)
    )
    return replace(read_decoder(fields, defaults, tuple(layers)), norm="rms_one_plus")


def write_hybrid(config: ModelConfig) -> dict[str, object]:
    """The inverse of `read_hybrid`."""
    bias = written_attention(config).qkv_bias
    return {**write_decoder(config), **write_delta(config), "attention_bias": bias}
