"""Bamba: Mamba-2 in most layers, attention with half-rotated heads in the others."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import Mamba2Config, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.hf_mamba import read_mamba2, write_mamba2
from jengine.models.reading.hf_write import written_attention
from jengine.models.reading.plain_decoder import (
    ATTENTION_BIAS,
    MLP_BIAS,
    UNSAID,
    PlainDecoder,
    with_mixers,
)
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("BambaForCausalLM",)
MODELS = "Bamba"
NAMES = Names(
    final_norm="final_layernorm",
    before_mlp="pre_ff_layernorm",
    gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
)
DEFAULTS = Defaults(
    vocab_size=128000,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=None,
    max_position=262144,
    norm_eps=1e-5,
    partial_rotary=0.5,
    bos_token_id=1,
    eos_token_id=2,
)
PLAIN = PlainDecoder("bamba", DEFAULTS, (ATTENTION_BIAS, MLP_BIAS), UNSAID)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields, config = Fields(hf), PLAIN.read_config(hf)
    last, mamba = len(config.layers) - 1, read_mamba2(fields, config.hidden_size)
    full = fields.integers("attn_layer_indices", None, maximum=last, each="a layer")
    attention = written_attention(config)
    return with_mixers(config, [attention if at in full else mamba for at in range(last + 1)])


def write_config(config: ModelConfig) -> dict[str, object]:
    mixers = [layer.mixer for layer in config.layers]
    return {
        **PLAIN.write_config(config),
        **write_mamba2(config),
        "attn_layer_indices": [
            layer for layer, mixer in enumerate(mixers) if not isinstance(mixer, Mamba2Config)
        ],
    }
