"""Qwen2-VL: Qwen2 beside a tower for images of any size. Multimodal rotary positions (frame, row,
column); 2 x 2 patches make one token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from jengine.config import MergerConfig, ModelConfig, VisionConfig
from jengine.models.families import qwen2
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_vision import (
    MOST_VISION_LAYERS,
    WRITTEN_ACTIVATIONS,
    read_tokens,
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
from jengine.models.vision_language import VisionDecoder

ARCHITECTURES = ("Qwen2VLForConditionalGeneration",)
MODELS = "Qwen2-VL"
NAMES = Names()
TOWER = TowerNames()
SECTIONS = (16, 24, 24)
build = VisionDecoder
pieces = partial(decoder_and_tower, names=NAMES, tower=TOWER)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    text, sections, _ = without_sections(text_part(hf))
    config = with_sections(qwen2.read_config(text), sections or SECTIONS)
    return replace(config, vision=_read_vision(Fields(hf), vision_part(hf), config))


def _read_vision(top: Fields, fields: Fields, config: ModelConfig) -> VisionConfig:
    hidden, side = fields.integer("embed_dim", 1280), fields.integer("spatial_merge_size", 2)
    width = read_width(fields, "hidden_size", 3584, config)
    return VisionConfig(
        family="qwen2_vl",
        hidden_size=hidden,
        intermediate_size=hidden * fields.integer("mlp_ratio", 4),
        num_layers=fields.integer("depth", 32, maximum=MOST_VISION_LAYERS),
        merger=MergerConfig("norm_each", side, width, hidden * side**2),
        activation=read_vision_activation(fields, "quick_gelu"),
        **read_shared(top, fields, config),
    )


def read_shared(
    top: Fields, fields: Fields, config: ModelConfig, *, patch_size: int = 14
) -> dict[str, Any]:
    """Tower settings with the same keys in Qwen2-VL and its successors."""
    tokens = read_tokens(
        top, config.vocab_size, image=151655, video=151656, vision_start=151652, vision_end=151653
    )
    rope = fields.part("rope_parameters")
    channels = "in_chans" if "in_chans" in fields.values else "in_channels"
    return {
        "num_heads": fields.integer("num_heads", 16),
        "patch_size": fields.integer("patch_size", patch_size),
        "image_token": tokens["image_token"],
        "video_token": tokens["video_token"],
        "start_token": tokens["vision_start_token"],
        "end_token": tokens["vision_end_token"],
        "channels": fields.integer(channels, 3),
        "frames": fields.integer("temporal_patch_size", 2),
        "rope_theta": 10000.0 if rope is None else rope.number("rope_theta", 10000.0),
        "initializer_range": fields.number("initializer_range", 0.02, maximum=1.0),
    }


def write_config(config: ModelConfig) -> dict[str, object]:
    vision = config.vision
    assert vision is not None, "read with one"
    tower = {
        **write_shared(vision),
        "embed_dim": vision.hidden_size,
        "hidden_size": vision.merger.width,
        "mlp_ratio": vision.intermediate_size // vision.hidden_size,
    }
    return {
        **write_sections(qwen2.write_config(config), config),
        "model_type": "qwen2_vl",
        "vision_config": tower,
        **write_tokens(vision),
    }


def write_shared(vision: VisionConfig) -> dict[str, object]:
    """Inverse of `read_shared`, without token ids."""
    return {
        "depth": vision.num_layers,
        "num_heads": vision.num_heads,
        "patch_size": vision.patch_size,
        "spatial_merge_size": vision.merger.side,
        "temporal_patch_size": vision.frames,
        "in_channels": vision.channels,
        "hidden_act": WRITTEN_ACTIVATIONS[vision.activation],
        "rope_parameters": {"rope_type": "axial", "rope_theta": vision.rope_theta},
        "initializer_range": vision.initializer_range,
    }


def write_tokens(vision: VisionConfig) -> dict[str, object]:
    return {
        "image_token_id": vision.image_token,
        "video_token_id": vision.video_token,
        "vision_start_token_id": vision.start_token,
        "vision_end_token_id": vision.end_token,
    }
