"""InternVL 3 in transformers' form: a vision tower with layer scale, beside Qwen2 or Llama. Large
images are cut into separately encoded tiles; 2 x 2 patches make one token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from jengine.config import MergerConfig, ModelConfig, VisionConfig
from jengine.models.families import llava, qwen2_vl
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_vision import (
    MOST_VISION_LAYERS,
    WRITTEN_ACTIVATIONS,
    read_vision_activation,
    vision_part,
)
from jengine.models.tensors.checkpoint import Names
from jengine.models.tensors.vision_pieces import TowerNames, decoder_and_tower

__all__ = ["ARCHITECTURES", "MODELS", "NAMES", "build", "pieces", "read_config", "write_config"]

ARCHITECTURES = ("InternVLForConditionalGeneration",)
MODELS = "InternVL 3"
NAMES = Names(prefix="language_model.model.", head="language_model.lm_head")
TOWER = TowerNames(
    prefix="vision_tower.",
    patch="embeddings.patch_embeddings.projection",
    patch_has_frames=False,
    class_vector="embeddings.cls_token",
    table="embeddings.position_embeddings",
    table_has_batch=True,
    norm_after="layernorm",
    blocks="encoder.layer",
    before_attention="layernorm_before",
    before_mlp="layernorm_after",
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    out="attention.projection_layer",
    scales=("lambda_1", "lambda_2"),
    merger_norm="multi_modal_projector.layer_norm",
    merger_up="multi_modal_projector.linear_1",
    merger_down="multi_modal_projector.linear_2",
)
build = qwen2_vl.build
pieces = partial(decoder_and_tower, names=NAMES, tower=TOWER)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    config = llava.read_text(hf, "qwen2", ARCHITECTURES[0])
    return replace(config, vision=_read_vision(Fields(hf), vision_part(hf), config))


def _read_vision(top: Fields, fields: Fields, config: ModelConfig) -> VisionConfig:
    for key, value in (("use_qk_norm", False), ("use_absolute_position_embeddings", True)):
        if fields.flag(key, value) is not value:
            fields.refuse(key, str(value).lower())
    if fields.values.get("norm_type", "layer_norm") != "layer_norm":
        fields.refuse("norm_type", "'layer_norm'")
    for key, usual in (("vision_feature_layer", -1), ("vision_feature_select_strategy", "default")):
        if top.values.get(key, usual) != usual:
            top.refuse(key, repr(usual))
    if top.number("downsample_ratio", 0.5) != 0.5:
        top.refuse("downsample_ratio", "0.5")
    patch, size = _side(fields, "patch_size", 14), _side(fields, "image_size", 448)
    if size % (2 * patch):
        fields.refuse("image_size", f"a multiple of twice the patch_size ({patch})")
    hidden = fields.integer("hidden_size", 1024)
    return VisionConfig(
        family="internvl",
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size", 4096),
        num_layers=fields.integer("num_hidden_layers", 24, maximum=MOST_VISION_LAYERS),
        num_heads=fields.integer("num_attention_heads", 16),
        patch_size=patch,
        merger=MergerConfig(
            "norm_merged", 2, config.hidden_size, config.hidden_size, norm_eps=1e-5,
            activation=read_vision_activation(top, "gelu", "projector_hidden_act"),
        ),
        image_token=top.integer(
            "image_token_id", 151667, minimum=0, maximum=config.vocab_size - 1
        ),
        channels=fields.integer("num_channels", 3),
        norm_eps=fields.number("layer_norm_eps", 1e-6, above_minimum=True),
        activation=read_vision_activation(fields, "gelu"),
        qkv_bias=fields.flag("attention_bias", False),
        patch_bias=True,
        layer_scales=True,
        table_side=size // patch,
        class_vector=True,
        norm_after=not fields.flag("use_mean_pooling", True),
        image_size=size,
        initializer_range=fields.number("initializer_range", 0.02, maximum=1.0),
    )  # fmt: skip


def _side(fields: Fields, key: str, default: int) -> int:
    """Side of a square, given once or as a pair of equal numbers."""
    value = fields.values.get(key, default)
    if isinstance(value, list | tuple) and len(value) == 2 and value[0] == value[1]:
        return Fields({key: value[0]}, fields.where).integer(key)
    return fields.integer(key, default)


def write_config(config: ModelConfig) -> dict[str, object]:
    vision = config.vision
    assert vision is not None, "read with one"
    return {
        **llava.write_text(config, ARCHITECTURES[0]),
        "model_type": "internvl",
        "vision_config": {
            **llava.write_tower(vision),
            "model_type": "internvl_vision",
            "attention_bias": vision.qkv_bias,
            "use_mean_pooling": not vision.norm_after,
        },
        "projector_hidden_act": WRITTEN_ACTIVATIONS[vision.merger.activation],
        "image_token_id": vision.image_token,
        "image_seq_length": vision.table_side**2 // vision.merger.patches,
    }
