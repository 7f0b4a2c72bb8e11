"""EXAONE 4: post-norms; the larger models rotate only in sliding-window layers."""

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
from jengine.models.reading.hf_layers import (
    expect_uniform_layers,
    read_layer_pattern,
    rotated_in_windows,
    with_windows,
)
from jengine.models.reading.hf_write import write_decoder, write_layer_types, written_window
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("Exaone4ForCausalLM",)
MODELS = "EXAONE 4"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=102400,
    hidden_size=4096,
    intermediate_size=16384,
    num_layers=32,
    num_heads=32,
    num_kv_heads=32,
    head_dim=None,
    max_position=2048,
    norm_eps=1e-5,
    bos_token_id=0,
    eos_token_id=2,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    num_layers = read_num_layers(fields, DEFAULTS)
    attention = read_attention(fields, DEFAULTS, qk_norm="head")
    layer = LayerConfig(attention, read_mlp(fields, DEFAULTS))
    if fields.optional_integer("sliding_window", 4096) is None:
        expect_uniform_layers(fields, num_layers, "full")
        layers = (layer,) * num_layers
    else:
        layers = with_windows(layer, _windows(fields, num_layers))
        layers = tuple(map(rotated_in_windows, layers))
    return replace(read_decoder(fields, DEFAULTS, layers), norm_places="after")


def _windows(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
    if fields.values.get("layer_types") is not None:  # the pattern may be a word then
        return read_layer_pattern(fields, num_layers, 4096, full_every=1)
    pattern = fields.integer("sliding_window_pattern", 4)
    return read_layer_pattern(fields, num_layers, 4096, full_every=pattern)


def write_config(config: ModelConfig) -> dict[str, object]:
    return {
        **write_decoder(config),
        "model_type": "exaone4",
        "layer_types": write_layer_types(config),
        "sliding_window": written_window(config),
    }
