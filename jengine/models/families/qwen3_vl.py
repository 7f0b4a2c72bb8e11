"""Qwen3-VL: Qwen3 beside a tower with learned positions. Intermediate tower features are added
after the first decoder layers (deepstack). Rotary pairs alternate between frame, row and column
(interleaved MRoPE).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from jengine.config import MergerConfig, ModelConfig, VisionConfig
from jengine.models.families import qwen2_vl, qwen3
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

ARCHITECTURES = ("Qwen3VLForConditionalGeneration",)
MODELS = "Qwen3-VL"
NAMES = Names(prefix="model.language_model.")
DEEP = "model.visual.deepstack_merger_list.{}."
TOWER = TowerNames(
    prefix="model.visual.",
    table="pos_embed.weight",
    up=("mlp.linear_fc1",),
    down="mlp.linear_fc2",
    merger_norm="model.visual.merger.norm",
    merger_up="model.visual.merger.linear_fc1",
    merger_down="model.visual.merger.linear_fc2",
    deep_norm=DEEP + "norm",
    deep_up=DEEP + "linear_fc1",
    deep_down=DEEP + "linear_fc2",
)
SECTIONS = (24, 20, 20)
build = qwen2_vl.build
pieces = partial(decoder_and_tower, names=NAMES, tower=TOWER)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    text, sections, _ = without_sections(text_part(hf))
    config = with_sections(qwen3.read_config(text), sections or SECTIONS, interleaved=True)
    return replace(config, vision=_read_vision(Fields(hf), vision_part(hf), config))


def _read_vision(top: Fields, fields: Fields, config: ModelConfig) -> VisionConfig:
    hidden, side = fields.integer("hidden_size", 1152), fields.integer("spatial_merge_size", 2)
    width = read_width(fields, "out_hidden_size", 3584, config)
    layers = fields.integer("depth", 27, maximum=MOST_VISION_LAYERS)
    places = fields.integer("num_position_embeddings", 2304)
    if math.isqrt(places) ** 2 != places:
        fields.refuse("num_position_embeddings", "a square number")
    deep = (8, 16, 24)
    if "deepstack_visual_indexes" in fields.values:
        deep = fields.integers("deepstack_visual_indexes", None, maximum=layers - 1, each="a layer")
    if list(deep) != sorted(set(deep)) or len(deep) > len(config.layers):
        fields.refuse("deepstack_visual_indexes", "ascending layers, no more than the decoder has")
    return VisionConfig(
        family="qwen2_vl",
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size", 4304),
        num_layers=layers,
        merger=MergerConfig("norm_each", side, width, hidden * side**2),
        activation=read_vision_activation(fields, "gelu_pytorch_tanh"),
        patch_bias=True,
        table_side=math.isqrt(places),
        deep_layers=deep,
        times_in_text=True,
        **qwen2_vl.read_shared(top, fields, config, patch_size=16),
    )


def write_config(config: ModelConfig) -> dict[str, object]:
    vision = config.vision
    assert vision is not None, "read with one"
    tower = {
        **qwen2_vl.write_shared(vision),
        "hidden_size": vision.hidden_size,
        "intermediate_size": vision.intermediate_size,
        "out_hidden_size": vision.merger.width,
        "num_position_embeddings": vision.table_side**2,
        "deepstack_visual_indexes": list(vision.deep_layers),
    }
    text = write_sections(qwen3.write_config(config), config)
    whole = {key: text.pop(key) for key in ("architectures", "tie_word_embeddings")}
    return {
        **whole,
        "torch_dtype": config.dtype,
        "model_type": "qwen3_vl",
        "text_config": {**text, "model_type": "qwen3_vl_text"},
        "vision_config": tower,
        **qwen2_vl.write_tokens(vision),
    }
