"""A ModelConfig as plain data: msgspec cannot tell two dataclasses in one field apart.

In: a ModelConfig. Out: a frame, and back. A field that ModelConfig gains travels by itself.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

import msgspec

from jengine.config import (
    AttentionConfig,
    ExpertsConfig,
    LatentConfig,
    LayerConfig,
    MlpConfig,
    ModelConfig,
)


class LayerFrame(msgspec.Struct, frozen=True, array_like=True):
    """One layer; its mixer is one of two, and so is its feed-forward block."""

    attention: AttentionConfig | None
    latent: LatentConfig | None
    mlp: MlpConfig | None
    experts: ExpertsConfig | None


_HINTS = get_type_hints(ModelConfig)
_OTHERS = [item.name for item in fields(ModelConfig) if item.name != "layers"]
# The fields of ModelConfig but for its layers, with their types.
Surroundings = msgspec.defstruct(
    "Surroundings", [(name, _HINTS[name]) for name in _OTHERS], frozen=True
)


class ModelFrame(msgspec.Struct, frozen=True, array_like=True):
    """A model's shape."""

    surroundings: Surroundings  # type: ignore[valid-type]
    layers: tuple[LayerFrame, ...]

    @classmethod
    def of(cls, config: ModelConfig) -> ModelFrame:
        """The frame of a config."""
        others = {name: getattr(config, name) for name in _OTHERS}
        return cls(Surroundings(**others), tuple(map(_layer_frame, config.layers)))

    @property
    def config(self) -> ModelConfig:
        """The config."""
        others: dict[str, Any] = msgspec.structs.asdict(self.surroundings)
        return ModelConfig(**others, layers=tuple(map(_layer, self.layers)))


def _layer_frame(layer: LayerConfig) -> LayerFrame:
    mixer, ffn = layer.mixer, layer.ffn
    return LayerFrame(
        mixer if isinstance(mixer, AttentionConfig) else None,
        mixer if isinstance(mixer, LatentConfig) else None,
        ffn if isinstance(ffn, MlpConfig) else None,
        ffn if isinstance(ffn, ExpertsConfig) else None,
    )


def _layer(frame: LayerFrame) -> LayerConfig:
    mixer, ffn = frame.attention or frame.latent, frame.mlp or frame.experts
    if mixer is None:
        raise msgspec.ValidationError("a layer without attention")
    if ffn is None:
        raise msgspec.ValidationError("a layer without a feed-forward block")
    return LayerConfig(mixer, ffn)
