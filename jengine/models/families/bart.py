"""BART: encoder-decoder of text with learned positions (after two unused rows) and post-norms."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import LayerConfig, ModelConfig, TextEncoderConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import MOST_LAYERS, read_common, refuse_unsupported
from jengine.models.reading.hf_encoder_decoder import (
    Usual,
    read_attention,
    read_encoder,
    read_mlp,
    write_both,
)
from jengine.models.tensors.checkpoint import IgnoredTensor, Names, Piece
from jengine.models.tensors.decoder_pieces import decoder_pieces
from jengine.models.tensors.speech_pieces import cross_pieces, text_pieces
from jengine.models.text_encoder import EncoderDecoder

ARCHITECTURES = ("BartForConditionalGeneration",)
MODELS = "BART"
NAMES = Names(
    prefix="model.",
    embed="shared",
    positions="decoder.embed_positions",
    embed_norm="decoder.layernorm_embedding",
    layers="decoder.layers",
    after_attention="self_attn_layer_norm",
    after_mlp="final_layer_norm",
    attention_out="self_attn.out_proj",
    gate_up=("fc1",),
    down="fc2",
    ignored=(
        IgnoredTensor(
            r"model\.(encoder|decoder)\.embed_tokens\.weight", "both share one embedding",
            same_as="model.shared.weight",
        ),
    ),
)  # fmt: skip
ENCODER = "model.encoder."
UNUSED_ROWS = 2
NORM_EPS = 1e-5
USUAL = Usual(heads=16, layers=12, ffn_dim=4096, start_token=2)
# Options with the only supported value.
FIXED = {
    "tie_word_embeddings": True,
    "normalize_before": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": False,
}
build = EncoderDecoder


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    refuse_unsupported(fields)
    for key, value in FIXED.items():
        fields.expect(key, value)
    vocab, hidden = fields.integer("vocab_size", 50265), fields.integer("d_model", 1024)
    attention = read_attention(fields, hidden, "decoder_attention_heads", USUAL)
    mlp = read_mlp(fields, USUAL)
    layers = fields.integer("decoder_layers", USUAL.layers, maximum=MOST_LAYERS)
    positions = fields.integer("max_position_embeddings", 1024)
    return ModelConfig(
        hidden_size=hidden,
        max_position=positions,
        layers=(LayerConfig(attention, mlp, cross=attention),) * layers,
        norm_eps=NORM_EPS,
        norm="layer",
        norm_places="sums",
        embed_norm=True,
        embed_scale=hidden**0.5 if fields.flag("scale_embedding", False) else 1.0,
        learned_positions=True,
        position_offset=UNUSED_ROWS,
        tie_embeddings=True,
        head_bias=True,
        **read_common(fields, vocab, 0, 2, "init_std"),
        text_encoder=TextEncoderConfig(
            positions=positions,
            **read_encoder(fields, hidden, vocab, USUAL),
            position_offset=UNUSED_ROWS,
        ),
    )


def write_config(config: ModelConfig) -> dict[str, object]:
    return {
        **write_both(config),
        "model_type": "bart",
        "max_position_embeddings": config.max_position,
        "scale_embedding": config.embed_scale != 1.0,
        **FIXED,
    }


def pieces(config: ModelConfig) -> dict[str, tuple[Piece, ...]]:
    assert config.text_encoder is not None, "read with one"
    # Files of the bare model omit it.
    bias = Piece("final_logits_bias", (1, config.vocab_size), source=(0,), optional=True)
    found = {
        **decoder_pieces(config, NAMES),
        **text_pieces(config.text_encoder, ENCODER),
        "logits_bias": (bias,),
    }
    for number, layer in enumerate(config.layers):
        theirs, path = f"{NAMES.prefix}{NAMES.layers}.{number}.", f"layers.{number}."
        found |= cross_pieces(layer, config.hidden_size, path, theirs, "after", key_bias=True)
    return found
