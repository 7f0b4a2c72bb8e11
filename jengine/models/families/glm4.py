"""GLM-4: partly rotated heads with interleaved pairs.

GLM-4-0414 has norms before and after each block, the first GLM-4 only before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import ModelConfig
from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.plain_decoder import BiasKey, PlainDecoder
from jengine.models.tensors.checkpoint import Names

AROUND = "Glm4ForCausalLM"  # norms around both blocks
ARCHITECTURES = (AROUND, "GlmForCausalLM")
MODELS = "GLM-4"
NAMES = Names(
    rotates_neighbours=True,
    gate_up=("mlp.gate_up_proj",),
    after_attention="post_self_attn_layernorm",
    after_mlp="post_mlp_layernorm",
)
DEFAULTS = Defaults(
    vocab_size=151552,
    hidden_size=4096,
    intermediate_size=13696,
    num_layers=40,
    num_heads=32,
    num_kv_heads=2,
    head_dim=128,
    max_position=131072,
    norm_eps=1.5625e-07,
    partial_rotary=0.5,
)

EOS_TOKEN_IDS = (151329, 151336, 151338)
PLAIN = PlainDecoder("glm", DEFAULTS, (BiasKey("attention_bias", ("qkv",), True),))


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    config = PLAIN.read_config(hf)
    if hf.get("eos_token_id") is None:
        known = tuple(token for token in EOS_TOKEN_IDS if token < config.vocab_size)
        config = replace(config, eos_token_ids=known)
    return replace(config, norm_places="around") if config.architecture == AROUND else config


def write_config(config: ModelConfig) -> dict[str, object]:
    written = {**PLAIN.write_config(config), "pad_token_id": None}
    return {**written, "model_type": "glm4"} if config.architecture == AROUND else written
