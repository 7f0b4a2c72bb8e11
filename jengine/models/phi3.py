"""Phi-3, Phi-3.5 and Phi-4 without long-context rope scaling: as Llama, with fused tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import LayerConfig, ModelConfig
from jengine.models.checkpoint import Names
from jengine.models.fields import Fields
from jengine.models.hf_config import (
    Defaults,
    read_attention,
    read_decoder,
    read_mlp,
    read_num_layers,
)
from jengine.models.hf_layers import expect_uniform_layers
from jengine.models.hf_write import write_decoder, written_window

ARCHITECTURES = ("Phi3ForCausalLM",)
MODELS = "Phi-3, Phi-4 (without longrope)"
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
    bos_token_id=1,
    eos_token_id=32000,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    """The decoder that a Phi-3 config.json describes."""
    fields = Fields(hf)
    _refuse_longrope(fields)
    num_layers = read_num_layers(fields, DEFAULTS)
    window = fields.optional_integer("sliding_window", None)
    expect_uniform_layers(fields, num_layers, "full" if window is None else "sliding")
    attention = replace(read_attention(fields, DEFAULTS), window=window)
    layer = LayerConfig(attention, read_mlp(fields, DEFAULTS))
    return read_decoder(fields, DEFAULTS, (layer,) * num_layers)


def write_config(config: ModelConfig) -> dict[str, object]:
    """The inverse of `read_config`."""
    window = written_window(config)
    # The default pad token of transformers is outside of small vocabularies.
    family = {"model_type": "phi3", "sliding_window": window, "pad_token_id": None}
    return {**write_decoder(config), **family}


def _refuse_longrope(fields: Fields) -> None:
    """Refuse longrope: its frequencies depend on the length, but cached keys stay rotated."""
    for part in (fields.part("rope_scaling"), fields.part("rope_parameters")):
        for key in ("rope_type", "type"):
            if part is not None and part.values.get(key) in ("longrope", "su", "yarn"):
                part.refuse(
                    key,
                    "'default': longrope is not supported. Use the short-context release of the"
                    " model (Phi-3-mini-4k, Phi-4)",
                )
