"""LLaVA 1.5: a CLIP tower beside Llama, Mistral or Qwen2. Images have one size; patch features of
the last layer but one pass a two-layer projector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from jengine.config import AttentionConfig, MergerConfig, ModelConfig, VisionConfig
from jengine.errors import CheckpointError
from jengine.models.families import llama, mistral, qwen2, qwen2_vl
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_vision import (
    MOST_VISION_LAYERS,
    WRITTEN_ACTIVATIONS,
    as_architecture,
    read_vision_activation,
    text_part,
    vision_part,
)
from jengine.models.tensors.checkpoint import IgnoredTensor, Names
from jengine.models.tensors.vision_pieces import TowerNames, decoder_and_tower

__all__ = ["ARCHITECTURES", "MODELS", "NAMES", "build", "pieces", "read_config", "write_config"]

ARCHITECTURES = ("LlavaForConditionalGeneration",)
MODELS = "LLaVA 1.5"
TEXTS = {
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen2,
}
# Layers after the selected feature layer are not used, nor is the final norm.
OLDER = (("vision_tower.vision_model.", "vision_tower."),)
NAMES = Names(
    prefix="language_model.model.",
    head="language_model.lm_head",
    older=OLDER,
    ignored=(
        *Names().ignored,
        IgnoredTensor(
            r"vision_tower\.(encoder\.layers\.\d+|post_layernorm|embeddings"
            r"\.position_ids)\b.*",
            "layers behind the one whose result is used",
        ),
    ),
)
LAYER = "encoder.layers"
TOWER = TowerNames(
    prefix="vision_tower.",
    patch="embeddings.patch_embedding",
    patch_has_frames=False,
    class_vector="embeddings.class_embedding",
    table="embeddings.position_embedding.weight",
    norm_before="pre_layrnorm",
    blocks=LAYER,
    before_attention="layer_norm1",
    before_mlp="layer_norm2",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    out="self_attn.out_proj",
    merger_up="multi_modal_projector.linear_1",
    merger_down="multi_modal_projector.linear_2",
)
build = qwen2_vl.build
pieces = partial(decoder_and_tower, names=NAMES, tower=TOWER)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    config = read_text(hf, "llama", ARCHITECTURES[0])
    return replace(config, vision=_read_vision(Fields(hf), vision_part(hf), config))


def read_text(hf: Mapping[str, object], usual: str, architecture: str) -> ModelConfig:
    """Read `text_config`, which may be of several families."""
    text = text_part(hf)
    kind = text.get("model_type", usual)
    if kind not in TEXTS:
        raise CheckpointError(
            f"config.json: text_config: 'model_type': given {kind!r}, expected one of "
            f"{', '.join(TEXTS)}."
        )
    family = TEXTS[str(kind)]
    config = family.read_config(as_architecture(text, family.ARCHITECTURES[0]))
    return replace(config, architecture=architecture)


def _read_vision(top: Fields, fields: Fields, config: ModelConfig) -> VisionConfig:
    kind = fields.values.get("model_type", "clip_vision_model")
    if kind != "clip_vision_model":
        fields.refuse("model_type", "'clip_vision_model'")
    if top.values.get("vision_feature_select_strategy", "default") != "default":
        top.refuse("vision_feature_select_strategy", "'default'")
    layers = fields.integer("num_hidden_layers", 24, maximum=MOST_VISION_LAYERS)
    used = top.values.get("vision_feature_layer", -2)
    if type(used) is not int or not -layers - 1 <= used <= layers:
        top.refuse("vision_feature_layer", "the number of a layer")
    patch, size = fields.integer("patch_size", 14), fields.integer("image_size", 336)
    if size % patch:
        fields.refuse("image_size", f"a multiple of patch_size ({patch})")
    key = "image_token_index" if "image_token_index" in top.values else "image_token_id"
    return VisionConfig(
        family="llava",
        hidden_size=fields.integer("hidden_size", 1024),
        intermediate_size=fields.integer("intermediate_size", 4096),
        num_layers=used % (layers + 1),
        num_heads=fields.integer("num_attention_heads", 16),
        patch_size=patch,
        merger=MergerConfig(
            "none", 1, config.hidden_size, config.hidden_size,
            activation=read_vision_activation(top, "gelu", "projector_hidden_act"),
            bias=top.flag("multimodal_projector_bias", True),
        ),
        image_token=top.integer(key, 32000, minimum=0, maximum=config.vocab_size - 1),
        channels=fields.integer("num_channels", 3),
        norm_eps=fields.number("layer_norm_eps", 1e-5, above_minimum=True),
        activation=read_vision_activation(fields, "quick_gelu"),
        table_side=size // patch,
        class_vector=True,
        norm_before=True,
        image_size=size,
        initializer_range=fields.number("initializer_range", 0.02, maximum=1.0),
    )  # fmt: skip


def write_config(config: ModelConfig) -> dict[str, object]:
    """Inverse of `read_config`; writes only the tower layers that are used."""
    vision = config.vision
    assert vision is not None, "read with one"
    return {
        **write_text(config, ARCHITECTURES[0]),
        "model_type": "llava",
        "vision_config": {**write_tower(vision), "model_type": "clip_vision_model"},
        "vision_feature_layer": vision.num_layers,
        "vision_feature_select_strategy": "default",
        "projector_hidden_act": WRITTEN_ACTIVATIONS[vision.merger.activation],
        "multimodal_projector_bias": vision.merger.bias,
        "image_token_index": vision.image_token,
        "image_seq_length": vision.table_side**2,
    }


def write_text(config: ModelConfig, architecture: str) -> dict[str, object]:
    """The inverse of `read_text`."""
    mixer = config.layers[0].mixer
    biased = isinstance(mixer, AttentionConfig) and mixer.qkv_bias
    family = qwen2 if biased else llama
    text = family.write_config(replace(config, architecture=family.ARCHITECTURES[0]))
    tied = text.pop("tie_word_embeddings")
    del text["architectures"]
    return {
        "architectures": [architecture],
        "tie_word_embeddings": tied,
        "torch_dtype": config.dtype,
        "text_config": text,
    }


def write_tower(vision: VisionConfig) -> dict[str, object]:
    """config.json keys of towers with fixed-size images."""
    return {
        "hidden_size": vision.hidden_size,
        "intermediate_size": vision.intermediate_size,
        "num_hidden_layers": vision.num_layers,
        "num_attention_heads": vision.num_heads,
        "num_channels": vision.channels,
        "patch_size": vision.patch_size,
        "image_size": vision.image_size,
        "layer_norm_eps": vision.norm_eps,
        "hidden_act": WRITTEN_ACTIVATIONS[vision.activation],
        "initializer_range": vision.initializer_range,
    }
