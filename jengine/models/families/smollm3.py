"""SmolLM3: Llama without rotation in every fourth layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.hf_layers import read_rotated_layers
from jengine.models.reading.hf_write import written_attention
from jengine.models.reading.plain_decoder import ATTENTION_BIAS, MLP_BIAS, PlainDecoder
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("SmolLM3ForCausalLM",)
MODELS = "SmolLM3"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=128256,
    hidden_size=2048,
    intermediate_size=11008,
    num_layers=36,
    num_heads=16,
    num_kv_heads=4,
    head_dim=None,
    max_position=32768,
    rope_theta=2000000.0,
    tie_embeddings=True,
    bos_token_id=128000,
    eos_token_id=128001,
)
PLAIN = PlainDecoder(
    "smollm3",
    DEFAULTS,
    (ATTENTION_BIAS, MLP_BIAS),
    expected=(("use_sliding_window", False, ", as in SmolLM3"),),
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    config = PLAIN.read_config(hf)
    rotated = read_rotated_layers(Fields(hf), len(config.layers))
    first = config.layers[0]
    plain = replace(first, mixer=replace(written_attention(config), rope=None))
    return replace(config, layers=tuple(first if each else plain for each in rotated))


def write_config(config: ModelConfig) -> dict[str, object]:
    return {
        **PLAIN.write_config(config),
        "no_rope_layers": [int(layer.mixer.rope is not None) for layer in config.layers],
        "pad_token_id": None,
    }
