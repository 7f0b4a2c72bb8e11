"""EXAONE 4: post-norms; the larger models rotate only in sliding-window layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.hf_layers import (
    expect_uniform_layers,
    read_layer_pattern,
    rotated_in_windows,
)
from jengine.models.reading.hf_write import write_layer_types, written_window
from jengine.models.reading.plain_decoder import PlainDecoder, Windows
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


def _read_windows(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
    if fields.optional_integer("sliding_window", 4096) is None:
        expect_uniform_layers(fields, num_layers, "full")
        return (None,) * num_layers
    # Not read beside layer_types: it may be a string then.
    is_given = fields.values.get("layer_types") is not None
    pattern = 1 if is_given else fields.integer("sliding_window_pattern", 4)
    return read_layer_pattern(fields, num_layers, 4096, full_every=pattern)


def _write_windows(config: ModelConfig) -> dict[str, object]:
    return {"layer_types": write_layer_types(config), "sliding_window": written_window(config)}


PLAIN = PlainDecoder(
    "exaone4",
    DEFAULTS,
    windows=Windows(_read_windows, _write_windows),
    attention={"qk_norm": "head"},
    model={"norm_places": "after"},
)
write_config = PLAIN.write_config


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    config = PLAIN.read_config(hf)
    if Fields(hf).optional_integer("sliding_window", 4096) is None:
        return config
    return replace(config, layers=tuple(map(rotated_in_windows, config.layers)))
