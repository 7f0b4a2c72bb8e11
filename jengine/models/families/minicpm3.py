"""MiniCPM3: latent attention with half-split rotary pairs, and multipliers of embeddings, residuals
and logits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from jengine.config import LayerConfig, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults, read_decoder, read_mlp, read_num_layers
from jengine.models.reading.hf_latent import read_latent, write_latent
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("MiniCPM3ForCausalLM",)
MODELS = "MiniCPM3"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=73448,
    hidden_size=2560,
    intermediate_size=6400,
    num_layers=62,
    num_heads=40,
    num_kv_heads=40,
    head_dim=None,
    max_position=32768,
    norm_eps=1e-5,
    tie_embeddings=True,
    initializer_range=0.1,
    bos_token_id=1,
    eos_token_id=2,
)
# Defaults of latent attention that differ from DeepSeek's.
LATENT = {"kv_lora_rank": 256, "q_lora_rank": 768, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32}
# Digits to which written factors are rounded, since they are computed back from derived ones.
DIGITS = 12


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields({**LATENT, **hf})
    fields.expect("mlp_bias", False, ": biases in the MLP are not supported")
    num_layers, hidden = read_num_layers(fields, DEFAULTS), fields.integer("hidden_size", 2560)
    latent = read_latent(fields, DEFAULTS)
    values = fields.optional_integer("v_head_dim", None) or hidden // latent.num_heads
    layer = LayerConfig(
        replace(latent, interleaved=False, value_dim=values), read_mlp(fields, DEFAULTS)
    )
    depth = fields.number("scale_depth", 1.4, above_minimum=True)
    base = fields.integer("dim_model_base", 256)
    return replace(
        read_decoder(fields, DEFAULTS, (layer,) * num_layers),
        embed_scale=fields.number("scale_emb", 12.0, above_minimum=True),
        residual_scale=depth / math.sqrt(num_layers),
        logit_scale=base / hidden,
    )


def write_config(config: ModelConfig) -> dict[str, object]:
    return {
        **write_latent(config),
        "model_type": "minicpm3",
        "scale_emb": config.embed_scale,
        "scale_depth": round(config.residual_scale * math.sqrt(len(config.layers)), DIGITS),
        "dim_model_base": round(config.logit_scale * config.hidden_size),
    }
