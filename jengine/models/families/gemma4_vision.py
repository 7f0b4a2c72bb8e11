"""Gemma 4 with images: patches of images of any size are average-pooled to a bounded number of
tokens. In the larger models an image's tokens attend to each other in sliding-window layers.

Audio and video are not read. Folders without a tower are read as text models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import AttentionConfig, MergerConfig, ModelConfig, VisionConfig
from jengine.models.context import StepContext
from jengine.models.families import gemma4
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_vision import (
    MOST_VISION_LAYERS,
    WRITTEN_ACTIVATIONS,
    read_vision_activation,
    text_part,
    vision_part,
)
from jengine.models.tensors.checkpoint import IgnoredTensor, Piece
from jengine.models.tensors.decoder_pieces import decoder_pieces
from jengine.models.tensors.normed_vision_pieces import normed_vision_pieces
from jengine.models.vision_language import VisionDecoder

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float32, Int

ARCHITECTURES = ("Gemma4ForConditionalGeneration",)
MODELS = "Gemma 4 (dense)"
LANGUAGE = "model.language_model."
NAMES = replace(
    gemma4.NAMES,
    prefix=LANGUAGE,
    older=(),
    ignored=(
        *gemma4.ignored_of(LANGUAGE),
        IgnoredTensor(r"model\.(audio_tower|embed_audio)\..*", "what encodes audio is not built"),
    ),
)
# transformers' default token ids.
TOKENS = {"image": 258880, "video": 258884, "audio": 258881, "boi": 255999, "eoi": 258882}
SOFT_TOKENS = "vision_soft_tokens_per_image"


class Gemma4Decoder(VisionDecoder):
    """A decoder that embeds a substitute token id at image, video and audio positions."""

    def __call__(
        self, tokens: Int[Array, "*tokens"], context: StepContext
    ) -> Float32[Array, "*tokens hidden"]:
        vision = self.config.vision
        assert vision is not None, "read with one"
        for token in vision.blanked:
            tokens = jnp.where(tokens == token, vision.blank, tokens)
        return super().__call__(tokens, context)


def build(config: ModelConfig, *, dtype: Any, rngs: nnx.Rngs | None) -> Gemma4Decoder:
    return Gemma4Decoder(config, dtype=dtype, rngs=rngs)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    config = gemma4.read_config(hf)
    if hf.get("vision_config") is None:
        return config
    text, ahead = Fields(text_part(hf)), False
    if text.values.get(gemma4.BOTH_WAYS) == "vision":
        ahead = True
        if any(_attention(config, layer).source is not None for layer in range(len(config.layers))):
            text.refuse("num_kv_shared_layers", f"0 where {gemma4.BOTH_WAYS} is 'vision'")
    config = replace(config, architecture=ARCHITECTURES[0])
    vision = _read_vision(Fields(hf), vision_part(hf), config, ahead=ahead)
    return _seeing(replace(config, vision=vision))


def _attention(config: ModelConfig, layer: int) -> AttentionConfig:
    mixer = config.layers[layer].mixer
    assert isinstance(mixer, AttentionConfig), "all of Gemma's layers attend"
    return mixer


def _seeing(config: ModelConfig) -> ModelConfig:
    """Let tokens attend to later tokens of their image in sliding-window layers only."""
    layers = []
    for number, layer in enumerate(config.layers):
        mixer = _attention(config, number)
        layers.append(replace(layer, mixer=replace(mixer, sees_ahead=mixer.window is not None)))
    return replace(config, layers=tuple(layers))


def _read_vision(top: Fields, fields: Fields, config: ModelConfig, *, ahead: bool) -> VisionConfig:
    if fields.values.get("model_type", "gemma4_vision") != "gemma4_vision":
        fields.refuse("model_type", "'gemma4_vision'")
    heads = fields.integer("num_attention_heads", 12)
    if fields.integer("num_key_value_heads", 12) != heads:
        fields.refuse("num_key_value_heads", f"num_attention_heads ({heads})")
    fields.expect("attention_bias", False)
    size = fields.integer("head_dim", 64)
    if size % 4:
        fields.refuse("head_dim", "a multiple of 4: halves of a head rotate in pairs")
    rope = fields.part("rope_parameters") or Fields({})
    if rope.values.get("rope_type", "axial") not in ("axial", "default"):
        rope.refuse("rope_type", "'axial', which published files call 'default'")
    most = config.vocab_size - 1
    ids = {
        name: top.integer(f"{name}_token_id", usual, minimum=0, maximum=most)
        for name, usual in TOKENS.items()
    }
    eps = fields.number("rms_norm_eps", 1e-6, above_minimum=True)
    return VisionConfig(
        family="gemma4",
        hidden_size=fields.integer("hidden_size", 768),
        intermediate_size=fields.integer("intermediate_size", 3072),
        num_layers=fields.integer("num_hidden_layers", 16, maximum=MOST_VISION_LAYERS),
        num_heads=heads,
        head_size=size,
        patch_size=fields.integer("patch_size", 16),
        merger=MergerConfig(
            "scaled_average", fields.integer("pooling_kernel_size", 3), config.hidden_size,
            norm_eps=eps, standardizes=fields.flag("standardize", False),
        ),
        image_token=ids["image"],
        video_token=ids["video"],
        start_token=ids["boi"],
        end_token=ids["eoi"],
        wraps=True,
        sees_ahead=ahead,
        norm="rms",
        norm_eps=eps,
        activation=read_vision_activation(fields, "gelu_pytorch_tanh", "hidden_activation"),
        norms_inside=True,
        clamps=fields.flag("use_clipped_linears", False),
        rope_theta=rope.number("rope_theta", 100.0, above_minimum=True),
        axis_rows=fields.integer("position_embedding_size", 10240),
        soft_tokens=top.integer(SOFT_TOKENS, 280),
        blanked=(ids["image"], ids["video"], ids["audio"]),
        blank=Fields(text_part(top.values)).integer("pad_token_id", 0, minimum=0, maximum=most),
        initializer_range=fields.number("initializer_range", 0.02, maximum=1.0),
    )  # fmt: skip


def write_config(config: ModelConfig) -> dict[str, object]:
    vision = config.vision
    assert vision is not None, "read with one"
    text = gemma4.write_config(replace(config, architecture=gemma4.ARCHITECTURES[0]))
    tied = text.pop("tie_word_embeddings")
    del text["architectures"]
    tower = {
        "model_type": "gemma4_vision",
        "hidden_size": vision.hidden_size,
        "intermediate_size": vision.intermediate_size,
        "num_hidden_layers": vision.num_layers,
        "num_attention_heads": vision.num_heads,
        "num_key_value_heads": vision.num_heads,
        "head_dim": vision.head_dim,
        "patch_size": vision.patch_size,
        "pooling_kernel_size": vision.merger.side,
        "position_embedding_size": vision.axis_rows,
        "rms_norm_eps": vision.norm_eps,
        "hidden_activation": WRITTEN_ACTIVATIONS[vision.activation],
        "rope_parameters": {"rope_type": "axial", "rope_theta": vision.rope_theta},
        "use_clipped_linears": vision.clamps,
        "standardize": vision.merger.standardizes,
        "initializer_range": vision.initializer_range,
    }
    ahead = "vision" if vision.sees_ahead else None
    return {
        "architectures": list(ARCHITECTURES),
        "tie_word_embeddings": tied,
        "torch_dtype": config.dtype,
        "model_type": "gemma4",
        "text_config": {**text, "pad_token_id": vision.blank, gemma4.BOTH_WAYS: ahead},
        "vision_config": tower,
        "audio_config": None,
        SOFT_TOKENS: vision.soft_tokens,
        "image_token_id": vision.image_token,
        "video_token_id": vision.video_token,
        "audio_token_id": vision.blanked[-1],
        "boi_token_id": vision.start_token,
        "eoi_token_id": vision.end_token,
    }


def pieces(config: ModelConfig) -> dict[str, tuple[Piece, ...]]:
    assert config.vision is not None, "read with one"
    return {**decoder_pieces(config, NAMES), **normed_vision_pieces(config.vision)}
