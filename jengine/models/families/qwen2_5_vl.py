"""Qwen2.5-VL: Qwen2-VL with RMS norms and gated MLPs in the tower, most of whose layers use
windowed attention. Video positions follow absolute time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from jengine.config import MergerConfig, ModelConfig, VisionConfig
from jengine.models.families import qwen2, qwen2_vl
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_vision import (
    MOST_VISION_LAYERS,
    read_vision_activation,
    read_width,
    text_part,
    vision_part,
    with_sections,
    without_sections,
    write_sections,
)
from jengine.models.tensors.checkpoint import Names
from jengine.models.tensors.vision_pieces import TowerNames, decoder_and_tower

__all__ = ["ARCHITECTURES", "MODELS", "NAMES", "build", "pieces", "read_config", "write_config"]

ARCHITECTURES = ("Qwen2_5_VLForConditionalGeneration",)
MODELS = "Qwen2.5-VL"
NAMES = Names()
TOWER = TowerNames(up=("mlp.gate_proj", "mlp.up_proj"), down="mlp.down_proj")
build = qwen2_vl.build
pieces = partial(decoder_and_tower, names=NAMES, tower=TOWER)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    text, sections, _ = without_sections(text_part(hf))
    config = with_sections(qwen2.read_config(text), sections or qwen2_vl.SECTIONS)
    return replace(config, vision=_read_vision(Fields(hf), vision_part(hf), config))


def _read_vision(top: Fields, fields: Fields, config: ModelConfig) -> VisionConfig:
    hidden, side = fields.integer("hidden_size", 3584), fields.integer("spatial_merge_size", 2)
    width = read_width(fields, "out_hidden_size", 3584, config)
    layers = fields.integer("depth", 32, maximum=MOST_VISION_LAYERS)
    full = (7, 15, 23, 31)
    if "fullatt_block_indexes" in fields.values:
        full = fields.integers("fullatt_block_indexes", None, maximum=layers - 1, each="a layer")
    return VisionConfig(
        family="qwen2_vl",
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size", 3420),
        num_layers=layers,
        merger=MergerConfig("norm_each", side, width, hidden * side**2, norm="rms"),
        norm="rms",
        activation=read_vision_activation(fields, "silu"),
        gated=True,
        full_layers=full,
        window=fields.integer("window_size", 112),
        steps_per_second=fields.integer("tokens_per_second", 4),
        **qwen2_vl.read_shared(top, fields, config),
    )


def write_config(config: ModelConfig) -> dict[str, object]:
    vision = config.vision
    assert vision is not None and vision.full_layers is not None, "read with them"
    tower = {
        **qwen2_vl.write_shared(vision),
        "hidden_size": vision.hidden_size,
        "intermediate_size": vision.intermediate_size,
        "out_hidden_size": vision.merger.width,
        "fullatt_block_indexes": list(vision.full_layers),
        "window_size": vision.window,
        "tokens_per_second": vision.steps_per_second,
    }
    return {
        **write_sections(qwen2.write_config(config), config),
        "model_type": "qwen2_5_vl",
        "vision_config": tower,
        **qwen2_vl.write_tokens(vision),
    }
