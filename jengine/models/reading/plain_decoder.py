"""Declarative reading and writing of decoders whose layers differ at most in their windows.

In: a family's differences from Llama's config.json. Out: `read_config` and `write_config`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from jengine.config import (
    AttentionConfig,
    FfnConfig,
    LayerConfig,
    MixerConfig,
    MlpConfig,
    ModelConfig,
)
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
    read_layer_windows,
    with_windows,
)
from jengine.models.reading.hf_rope import PARTIAL
from jengine.models.reading.hf_write import (
    write_decoder,
    write_layer_types,
    write_layer_windows,
    written_attention,
    written_biases,
    written_window,
)
from jengine.models.reading.keys import Experts, Keys, read_fields, write_fields

Part = Literal["qkv", "output", "mlp"]


class BiasKey(NamedTuple):
    """A config.json key that says whether some projections have biases."""

    key: str
    parts: tuple[Part, ...]
    default: bool = False


ATTENTION_BIAS = BiasKey("attention_bias", ("qkv", "output"))
MLP_BIAS = BiasKey("mlp_bias", ("mlp",))


class Windows(NamedTuple):
    """How config.json gives each layer's sliding window, None for full attention."""

    read: Callable[[Fields, int], tuple[int | None, ...]]
    write: Callable[[ModelConfig], dict[str, object]]


def one_window(default: int | None) -> Windows:
    """`sliding_window` on every layer, or null."""

    def read(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
        window = fields.optional_integer("sliding_window", default)
        expect_uniform_layers(fields, num_layers, "full" if window is None else "sliding")
        return (window,) * num_layers

    return Windows(read, lambda config: {"sliding_window": written_window(config)})


def layer_pattern(window: int, full_every: int, key: str | None = None) -> Windows:
    """`layer_types`, or full attention on every n-th layer (n at `key`); `sliding_window` on the
    others."""

    def read(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
        every = full_every if key is None else fields.integer(key, full_every)
        return read_layer_pattern(fields, num_layers, window, every)

    def write(config: ModelConfig) -> dict[str, object]:
        found = written_window(config) or window
        return {"layer_types": write_layer_types(config), "sliding_window": found}

    return Windows(read, write)


def _read_none(fields: Fields, num_layers: int) -> tuple[None, ...]:
    expect_uniform_layers(fields, num_layers, "full")
    return (None,) * num_layers


# without checking `layer_types`, which the family reads itself
UNSAID = Windows(lambda _, num_layers: (None,) * num_layers, lambda _: {})
NO_WINDOWS = Windows(_read_none, lambda _: {})
LAYER_WINDOWS = Windows(read_layer_windows, write_layer_windows)


class PlainDecoder(NamedTuple):
    """A family's differences: its keys beside the shared ones, and fields that all its models
    share."""

    model_type: str
    defaults: Defaults
    biases: tuple[BiasKey, ...] = ()
    windows: Windows = NO_WINDOWS
    attention: Mapping[str, Any] = {}
    mlp: Mapping[str, Any] = {}
    model: Mapping[str, Any] = {}
    attention_keys: Keys = {}
    model_keys: Keys = {}
    experts: Experts | None = None
    expected: tuple[tuple[str, bool, str], ...] = ()  # (key, value, why) for `Fields.expect`
    also_written: Mapping[str, object] = {}

    def read_config(self, hf: Mapping[str, object]) -> ModelConfig:
        fields = Fields(hf)
        for key, value, why in self.expected:
            fields.expect(key, value, why)
        num_layers = read_num_layers(fields, self.defaults)
        windows = self.windows.read(fields, num_layers)
        layer = self._read_layer(fields)
        config = read_decoder(fields, self.defaults, with_windows(layer, windows))
        config = replace(config, **{**self.model, **read_fields(fields, self.model_keys)})
        if self.experts is None or not isinstance(layer.ffn, MlpConfig):
            return config
        return with_blocks(config, self.experts.read_blocks(fields, layer.ffn, num_layers))

    def _read_layer(self, fields: Fields) -> LayerConfig:
        qkv, output = self._has_biases(fields, "qkv"), self._has_biases(fields, "output")
        attention = read_attention(fields, self.defaults, qkv_bias=qkv, output_bias=output)
        mlp = read_mlp(fields, self.defaults)
        mlp = replace(mlp, biases=self._has_biases(fields, "mlp"))
        own = {**self.attention, **read_fields(fields, self.attention_keys)}
        return LayerConfig(replace(attention, **own), replace(mlp, **self.mlp))

    def _has_biases(self, fields: Fields, part: Part) -> bool:
        return any(fields.flag(one.key, one.default) for one in self.biases if part in one.parts)

    def write_config(self, config: ModelConfig) -> dict[str, object]:
        written = write_decoder(config, self.defaults.norm_eps_key)
        if self.defaults.partial_rotary not in (None, 1.0):
            written.setdefault(PARTIAL, 1.0)
        attention, mlp = written_attention(config), written_biases(config)
        biases = {"qkv": attention.qkv_bias, "output": attention.output_bias, "mlp": mlp}
        return {
            **written,
            "model_type": self.model_type,
            **{one.key: biases[one.parts[0]] for one in self.biases},
            **self.windows.write(config),
            **write_fields(attention, self.attention_keys),
            **write_fields(config, self.model_keys),
            **({} if self.experts is None else self.experts.write(config)),
            **self.also_written,
        }


def with_blocks(config: ModelConfig, blocks: Iterable[FfnConfig]) -> ModelConfig:
    """The same layers with these feed-forward blocks."""
    layers = zip(config.layers, blocks, strict=True)
    return replace(config, layers=tuple(replace(layer, ffn=block) for layer, block in layers))


def with_mixers(config: ModelConfig, mixers: Iterable[MixerConfig]) -> ModelConfig:
    """The same layers with these mixers."""
    layers = zip(config.layers, mixers, strict=True)
    return replace(config, layers=tuple(replace(layer, mixer=mixer) for layer, mixer in layers))


def with_attention(config: ModelConfig, **changed: Any) -> ModelConfig:
    """The same layers with these fields of their attention."""

    def changed_layer(layer: LayerConfig) -> LayerConfig:
        assert isinstance(layer.mixer, AttentionConfig), "a plain decoder has attention alone"
        return replace(layer, mixer=replace(layer.mixer, **changed))

    return replace(config, layers=tuple(map(changed_layer, config.layers)))
