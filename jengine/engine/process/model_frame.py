"""ModelConfig as a msgspec struct, since msgspec cannot discriminate two dataclasses in one field.

In: a ModelConfig. Out: a frame, and back. New fields of ModelConfig need no change here.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

import msgspec

from jengine.config import (
    AttentionConfig,
    DeltaConfig,
    ExpertsConfig,
    LatentConfig,
    LayerConfig,
    Mamba2Config,
    MambaConfig,
    MlpConfig,
    ModelConfig,
    SharedBlockConfig,
    ShortConvConfig,
    SideBySideConfig,
)

MIXERS: dict[str, Any] = {
    "attention": AttentionConfig,
    "latent": LatentConfig,
    "short_conv": ShortConvConfig,
    "mamba": MambaConfig,
    "mamba2": Mamba2Config,
    "delta": DeltaConfig,
    "side_by_side": SideBySideConfig,
    "shared_block": SharedBlockConfig,
}
FFNS: dict[str, Any] = {"mlp": MlpConfig, "experts": ExpertsConfig}
# One layer: exactly one mixer and one feed-forward block are set.
LayerFrame = msgspec.defstruct(
    "LayerFrame",
    [
        *[(name, kind | None, None) for name, kind in {**MIXERS, **FFNS}.items()],
        ("attention_norm", bool, True),
        ("cross", AttentionConfig | None, None),
    ],
    frozen=True,
)


_HINTS = get_type_hints(ModelConfig)
_OTHERS = [item.name for item in fields(ModelConfig) if item.name != "layers"]
# All fields of ModelConfig except its layers.
Surroundings = msgspec.defstruct(
    "Surroundings", [(name, _HINTS[name]) for name in _OTHERS], frozen=True
)


class ModelFrame(msgspec.Struct, frozen=True, array_like=True):
    """A serialisable ModelConfig."""

    surroundings: Surroundings  # type: ignore[valid-type]
    layers: tuple[LayerFrame, ...]  # type: ignore[valid-type]

    @classmethod
    def of(cls, config: ModelConfig) -> ModelFrame:
        others = {name: getattr(config, name) for name in _OTHERS}
        return cls(Surroundings(**others), tuple(map(_layer_frame, config.layers)))

    @property
    def config(self) -> ModelConfig:
        others: dict[str, Any] = msgspec.structs.asdict(self.surroundings)
        return ModelConfig(**others, layers=tuple(map(_layer, self.layers)))


def _layer_frame(layer: LayerConfig) -> Any:
    halves = (MIXERS, layer.mixer), (FFNS, layer.ffn)
    return LayerFrame(
        **{name: half for kinds, half in halves for name, kind in kinds.items()
           if type(half) is kind},
        attention_norm=layer.attention_norm, cross=layer.cross,
    )  # fmt: skip


def _layer(frame: Any) -> LayerConfig:
    halves = _only(frame, MIXERS, "a mixer"), _only(frame, FFNS, "a feed-forward block")
    return LayerConfig(*halves, frame.attention_norm, frame.cross)


def _only(frame: Any, kinds: dict[str, Any], what: str) -> Any:
    found = [half for name in kinds if (half := getattr(frame, name)) is not None]
    if len(found) != 1:
        raise msgspec.ValidationError(f"a layer with {len(found)} times {what}; expected one")
    return found[0]
