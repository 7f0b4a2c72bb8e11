"""Reads which layers have a sliding window and which are rotated.

In: a config.json's fields. Out: per layer a window or None, whether it is rotated, or layers with
them. Must not know families.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from jengine.config import AttentionConfig, LatentConfig, LayerConfig, RopeConfig
from jengine.models.reading.fields import Fields

LAYER_TYPES = {"full_attention": "full", "sliding_attention": "sliding"}


def with_windows(layer: LayerConfig, windows: Iterable[int | None]) -> tuple[LayerConfig, ...]:
    """Copies of a layer, one per window (None: full attention)."""
    mixer = layer.mixer
    assert isinstance(mixer, AttentionConfig | LatentConfig), "a recurrent layer has no window"
    return tuple(replace(layer, mixer=replace(mixer, window=each)) for each in windows)


def with_sliding_rope(layer: LayerConfig, rope: RopeConfig) -> LayerConfig:
    """Replace the rotation of a layer if it has a window."""
    mixer = layer.mixer
    if isinstance(mixer, AttentionConfig) and mixer.window is not None:
        return replace(layer, mixer=replace(mixer, rope=rope))
    return layer


def read_layer_windows(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
    """Window per layer in the Qwen families' form: layer_types or max_window_layers."""
    enabled = fields.flag("use_sliding_window", False)
    window = fields.optional_integer("sliding_window", 4096) if enabled else None
    first_sliding = fields.integer("max_window_layers", 28, minimum=0)
    if fields.values.get("layer_types") is None:
        return tuple(window if index >= first_sliding else None for index in range(num_layers))
    kinds = read_layer_types(fields, num_layers)
    if "sliding" in kinds and window is None:
        fields.refuse("layer_types", "'sliding_window' and 'use_sliding_window' for those layers")
    return tuple(window if kind == "sliding" else None for kind in kinds)


def read_layer_pattern(
    fields: Fields, num_layers: int, window: int, full_every: int
) -> tuple[int | None, ...]:
    """Window per layer in the Gemma families' form: layer_types, or every n-th layer full."""
    found = fields.optional_integer("sliding_window", window)
    if fields.values.get("layer_types") is None:
        kinds = ["sliding" if (i + 1) % full_every else "full" for i in range(num_layers)]
    else:
        kinds = read_layer_types(fields, num_layers)
    if "sliding" in kinds and found is None:
        fields.refuse("sliding_window", "an integer, because there are sliding layers")
    return tuple(found if kind == "sliding" else None for kind in kinds)


def expect_uniform_layers(fields: Fields, num_layers: int, kind: str) -> None:
    """For families with uniform layers: refuse a `layer_types` with any other kind."""
    if fields.values.get("layer_types") is None:
        return
    if any(found != kind for found in read_layer_types(fields, num_layers)):
        fields.refuse("layer_types", f"{kind}_attention on every layer for this architecture")


def read_rotated_layers(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    """Whether each layer is rotated, from `no_rope_layers` (1: rotated) or an interval."""
    every = fields.integer("no_rope_layer_interval", 4)
    given = fields.integers("no_rope_layers", None, maximum=1, each="a 1 for each rotated layer")
    if given and len(given) < num_layers:
        fields.refuse("no_rope_layers", f"{num_layers} entries")
    return tuple(
        bool(given[layer]) if given else (layer + 1) % every != 0 for layer in range(num_layers)
    )


def rotated_in_windows(layer: LayerConfig) -> LayerConfig:
    """Remove the rotation of a layer without a window."""
    mixer = layer.mixer
    if isinstance(mixer, AttentionConfig) and mixer.window is None:
        return replace(layer, mixer=replace(mixer, rope=None))
    return layer


def read_layer_types(
    fields: Fields,
    num_layers: int,
    known: Mapping[str, str] = LAYER_TYPES,
    key: str = "layer_types",
) -> list[str]:
    """`layer_types`, or another key's list, mapped to our names. Raises CheckpointError."""
    value, names = fields.values.get(key), ", ".join(known)
    if not isinstance(value, list | tuple) or len(value) != num_layers:
        fields.refuse(key, f"a list of {num_layers} entries, each one of {names}")
    if not all(isinstance(kind, str) and kind in known for kind in value):
        fields.refuse(key, f"entries out of {names}")
    return [known[kind] for kind in value]
