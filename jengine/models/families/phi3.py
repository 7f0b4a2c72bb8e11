"""Phi-3, Phi-3.5 and Phi-4, also long-context variants: Llama with fused QKV and gate-up
tensors.
"""

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
from jengine.models.reading.hf_write import write_decoder, written_attention, written_window
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("Phi3ForCausalLM",)
MODELS = "Phi-3, Phi-3.5, Phi-4, Phi-4-mini"
NAMES = Names(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))
DEFAULTS = Defaults(
    vocab_size=32064,
    hidden_size=3072,
    intermediate_size=8192,
    num_layers=32,
    num_heads=32,
    num_kv_heads=None,
    head_dim=None,
    max_position=4096,
    norm_eps=1e-5,
    partial_rotary=1.0,
    bos_token_id=1,
    eos_token_id=32000,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    num_layers = read_num_layers(fields, DEFAULTS)
    window = fields.optional_integer("sliding_window", None)
    expect_uniform_layers(fields, num_layers, "full" if window is None else "sliding")
    attention = replace(read_attention(fields, DEFAULTS), window=window)
    layer = LayerConfig(attention, read_mlp(fields, DEFAULTS))
    return read_decoder(fields, DEFAULTS, (layer,) * num_layers)


def write_config(config: ModelConfig) -> dict[str, object]:
    window = written_window(config)
    # The default pad token of transformers is outside of small vocabularies.
    family = {"model_type": "phi3", "sliding_window": window, "pad_token_id": None}
    rope = written_attention(config).rope
    if rope is not None and rope.kind == "longrope":
        family["original_max_position_embeddings"] = rope.original_max_position
    return {**write_decoder(config), **family}
