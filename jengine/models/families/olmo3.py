"""OLMo 3: OLMo 2 with a sliding window on three of four layers, often with YaRN on the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import ModelConfig
from jengine.models.families.olmo2 import NAMES
from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.hf_layers import with_sliding_rope
from jengine.models.reading.hf_rope import read_rope, ropes_by_layer_type, write_rope_scaling
from jengine.models.reading.hf_write import write_layer_types
from jengine.models.reading.plain_decoder import ATTENTION_BIAS, PlainDecoder, layer_pattern

__all__ = ["ARCHITECTURES", "MODELS", "NAMES", "read_config", "write_config"]

ARCHITECTURES = ("Olmo3ForCausalLM",)
MODELS = "OLMo 3"
DEFAULTS = Defaults(
    vocab_size=50304,
    hidden_size=4096,
    intermediate_size=11008,
    num_layers=32,
    num_heads=32,
    num_kv_heads=None,
    head_dim=None,
    max_position=2048,
    norm_eps=1e-5,
    rope_theta=500000.0,
    eos_token_id=50279,
)
PLAIN = PlainDecoder(
    "olmo3",
    DEFAULTS,
    (ATTENTION_BIAS,),
    layer_pattern(4096, full_every=4),
    attention={"qk_norm": "whole"},
    model={"norm_places": "after"},
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields, sliding = ropes_by_layer_type(hf, "rope_theta")
    config = PLAIN.read_config(fields.values)
    rope = read_rope(sliding, DEFAULTS.rope_theta, config.max_position)
    return replace(config, layers=tuple(with_sliding_rope(one, rope) for one in config.layers))


def write_config(config: ModelConfig) -> dict[str, object]:
    written = PLAIN.write_config(config)
    ropes: dict[str, object] = {}
    for name, layer in zip(write_layer_types(config), config.layers, strict=True):
        if layer.mixer.rope is not None:
            scaling = write_rope_scaling(layer.mixer.rope) or {"rope_type": "default"}
            ropes[name] = {**scaling, "rope_theta": layer.mixer.rope.theta}
    # transformers applies flat rope settings to full attention only.
    for key in ("rope_theta", "rope_scaling"):
        del written[key]
    return {**written, "rope_parameters": ropes, "pad_token_id": None}
