"""Gemma 3 with images: a SigLIP tower. Images have one size; patches are average-pooled to tokens,
and the tokens of an image attend to each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from jengine.config import MergerConfig, ModelConfig, VisionConfig
from jengine.models.families import gemma3, llava, qwen2_vl
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_vision import (
    MOST_VISION_LAYERS,
    as_architecture,
    read_vision_activation,
    text_part,
    vision_part,
)
from jengine.models.tensors.checkpoint import IgnoredTensor, Names
from jengine.models.tensors.vision_pieces import decoder_and_tower

__all__ = ["ARCHITECTURES", "MODELS", "NAMES", "build", "pieces", "read_config", "write_config"]

ARCHITECTURES = ("Gemma3ForConditionalGeneration",)
MODELS = "Gemma 3"
NAMES = Names(
    prefix="language_model.model.",
    head="language_model.lm_head",
    before_mlp=gemma3.NAMES.before_mlp,
    older=llava.OLDER,
    ignored=(
        *Names().ignored,
        IgnoredTensor(
            r"vision_tower\.(head\..*|embeddings\.position_ids)",
            "the tower's own pooling, which is not used",
        ),
    ),
)
TOWER = replace(
    llava.TOWER,
    class_vector="",
    norm_before="",
    norm_after="post_layernorm",
    merger_norm="multi_modal_projector.mm_soft_emb_norm",
    merger_out="multi_modal_projector.mm_input_projection_weight",
)
build = qwen2_vl.build
pieces = partial(decoder_and_tower, names=NAMES, tower=TOWER)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    text, top = text_part(hf), Fields(hf)
    if text.get("use_bidirectional_attention") not in (None, False):
        Fields(text).refuse("use_bidirectional_attention", "false beside a vision tower")
    config = gemma3.read_config(as_architecture(text, gemma3.ARCHITECTURES[0]))
    config = replace(config, architecture=ARCHITECTURES[0])
    return replace(config, vision=_read_vision(top, vision_part(hf), config))


def _read_vision(top: Fields, fields: Fields, config: ModelConfig) -> VisionConfig:
    kind = fields.values.get("model_type", "siglip_vision_model")
    if kind != "siglip_vision_model":
        fields.refuse("model_type", "'siglip_vision_model'")
    patch, size = fields.integer("patch_size", 14), fields.integer("image_size", 896)
    tokens = top.integer("mm_tokens_per_image", 256)
    side = math.isqrt(tokens)
    if side**2 != tokens or size % (patch * side):
        top.refuse(
            "mm_tokens_per_image",
            f"the square of a number that divides the image ({size} pixels) into whole patches of "
            f"{patch}",
        )
    eps = fields.number("layer_norm_eps", 1e-6, above_minimum=True)
    ids = {
        name: top.integer(f"{name}_token_index", usual, minimum=0, maximum=config.vocab_size - 1)
        for name, usual in (("image", 262144), ("boi", 255999), ("eoi", 256000))
    }
    return VisionConfig(
        family="gemma3",
        hidden_size=fields.integer("hidden_size", 1152),
        intermediate_size=fields.integer("intermediate_size", 4304),
        num_layers=fields.integer("num_hidden_layers", 27, maximum=MOST_VISION_LAYERS),
        num_heads=fields.integer("num_attention_heads", 16),
        patch_size=patch,
        merger=MergerConfig(
            "average", size // patch // side, config.hidden_size, norm="rms_one_plus", norm_eps=eps
        ),
        image_token=ids["image"],
        start_token=ids["boi"],
        end_token=ids["eoi"],
        placeholder_token=ids["boi"],
        wraps=True,
        sees_ahead=True,
        channels=fields.integer("num_channels", 3),
        norm_eps=eps,
        activation=read_vision_activation(fields, "gelu_pytorch_tanh"),
        patch_bias=True,
        table_side=size // patch,
        norm_after=True,
        image_size=size,
    )


def write_config(config: ModelConfig) -> dict[str, object]:
    vision = config.vision
    assert vision is not None, "read with one"
    text = gemma3.write_config(replace(config, architecture=gemma3.ARCHITECTURES[0]))
    tied = text.pop("tie_word_embeddings")
    del text["architectures"]
    return {
        "architectures": list(ARCHITECTURES),
        "tie_word_embeddings": tied,
        "torch_dtype": config.dtype,
        "model_type": "gemma3",
        "text_config": text,
        "vision_config": {
            **llava.write_tower(vision),
            "model_type": "siglip_vision_model",
            "vision_use_head": False,
        },
        "mm_tokens_per_image": vision.most_ahead + 1,
        "image_token_index": vision.image_token,
        "boi_token_index": vision.start_token,
        "eoi_token_index": vision.end_token,
    }
