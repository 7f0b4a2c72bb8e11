"""Gemma (1): Llama with a scaled embedding, norm weights stored minus one, and GELU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from jengine.config import ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.plain_decoder import ATTENTION_BIAS, PlainDecoder
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("GemmaForCausalLM",)
MODELS = "Gemma"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=256000,
    hidden_size=3072,
    intermediate_size=24576,
    num_layers=28,
    num_heads=16,
    num_kv_heads=16,
    head_dim=256,
    max_position=8192,
    activation="gelu_pytorch_tanh",
    tie_embeddings=True,
    bos_token_id=2,
    eos_token_id=1,
)
# The first releases say "gelu" but were trained with the tanh approximation.
GELU = "gelu_pytorch_tanh"
PLAIN = PlainDecoder("gemma", DEFAULTS, (ATTENTION_BIAS,), model={"norm": "rms_one_plus"})
write_config = PLAIN.write_config


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields({**hf, "hidden_act": GELU} if hf.get("hidden_act") == "gelu" else hf)
    if fields.values.get("hidden_activation") not in (None, GELU):
        fields.refuse("hidden_activation", f"{GELU!r} or null: that of all Gemma models")
    if fields.values.get("use_bidirectional_attention") not in (None, False):
        fields.refuse("use_bidirectional_attention", "false: attention is causal here")
    config = PLAIN.read_config(fields.values)
    return replace(config, embed_scale=math.sqrt(config.hidden_size))
