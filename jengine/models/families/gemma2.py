"""Gemma 2: norms before and after each block, soft caps, and a sliding window on every second
layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from jengine.config import ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.hf_write import write_activation, written_attention
from jengine.models.reading.keys import optional_number
from jengine.models.reading.plain_decoder import (
    ATTENTION_BIAS,
    PlainDecoder,
    layer_pattern,
    with_attention,
)
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("Gemma2ForCausalLM",)
MODELS = "Gemma 2"
NAMES = Names(before_mlp="pre_feedforward_layernorm")
DEFAULTS = Defaults(
    vocab_size=256000,
    hidden_size=2304,
    intermediate_size=9216,
    num_layers=26,
    num_heads=8,
    num_kv_heads=4,
    head_dim=256,
    max_position=8192,
    activation="gelu_pytorch_tanh",
    activation_key="hidden_activation",
    tie_embeddings=True,
    bos_token_id=2,
    eos_token_id=1,
)
NORMS = {"norm": "rms_one_plus", "norm_places": "around"}
PLAIN = PlainDecoder(
    "gemma2",
    DEFAULTS,
    (ATTENTION_BIAS,),
    layer_pattern(4096, full_every=2),
    model=NORMS,
    attention_keys={"soft_cap": optional_number("attn_logit_softcapping", 50.0)},
    model_keys={"logit_soft_cap": optional_number("final_logit_softcapping", 30.0)},
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    if fields.values.get("use_bidirectional_attention") not in (None, False):
        fields.refuse("use_bidirectional_attention", "false: attention is causal here")
    return read_gemma(PLAIN, fields)


def write_config(config: ModelConfig) -> dict[str, object]:
    return write_gemma(PLAIN, config)


def read_gemma(plain: PlainDecoder, fields: Fields) -> ModelConfig:
    """Settings common to Gemma 2 and 3."""
    config = plain.read_config(fields.values)
    scale = fields.integer("query_pre_attn_scalar", 256) ** -0.5
    return replace(with_attention(config, scale=scale), embed_scale=math.sqrt(config.hidden_size))


def write_gemma(plain: PlainDecoder, config: ModelConfig) -> dict[str, object]:
    """Inverse of `read_gemma`."""
    written = {**plain.write_config(config), "hidden_activation": write_activation(config)}
    if (scale := written_attention(config).scale) is not None:
        written["query_pre_attn_scalar"] = round(scale**-2)
    return written
