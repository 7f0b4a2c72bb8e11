"""Whisper: a speech encoder, and a decoder with learned positions and cross attention."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import LayerConfig, ModelConfig, SpeechConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import MOST_LAYERS, read_common, refuse_unsupported
from jengine.models.reading.hf_encoder_decoder import (
    Usual,
    read_attention,
    read_encoder,
    read_mlp,
    write_both,
)
from jengine.models.speech import SpeechDecoder
from jengine.models.tensors.checkpoint import IgnoredTensor, Names, Piece
from jengine.models.tensors.decoder_pieces import decoder_pieces
from jengine.models.tensors.speech_pieces import cross_pieces, speech_pieces

ARCHITECTURES = ("WhisperForConditionalGeneration",)
MODELS = "Whisper"
NAMES = Names(
    prefix="model.decoder.",
    head="proj_out",
    positions="embed_positions",
    final_norm="layer_norm",
    before_attention="self_attn_layer_norm",
    before_mlp="final_layer_norm",
    attention_out="self_attn.out_proj",
    gate_up=("fc1",),
    down="fc2",
    ignored=(
        IgnoredTensor(
            r"model\.encoder\.layers\.\d+\.self_attn\.k_proj\.bias", "scores do not depend on it"
        ),
    ),
)
ENCODER = "model.encoder."
KEY_BIAS = "attention.qkv.bias"
NORM_EPS = 1e-5
USUAL = Usual(heads=6, layers=4, ffn_dim=1536, start_token=50257)
# Options with the only supported value.
FIXED = {"scale_embedding": False}
build = SpeechDecoder


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    refuse_unsupported(fields)
    for key, value in FIXED.items():
        if fields.flag(key, value) != value:
            fields.refuse(key, str(value).lower())
    vocab, hidden = fields.integer("vocab_size", 51865), fields.integer("d_model", 384)
    attention = read_attention(fields, hidden, "decoder_attention_heads", USUAL)
    mlp = read_mlp(fields, USUAL)
    layers = fields.integer("decoder_layers", USUAL.layers, maximum=MOST_LAYERS)
    return ModelConfig(
        hidden_size=hidden,
        max_position=fields.integer("max_target_positions", 448),
        layers=(LayerConfig(attention, mlp, cross=attention),) * layers,
        norm_eps=NORM_EPS,
        norm="layer",
        learned_positions=True,
        tie_embeddings=fields.flag("tie_word_embeddings", True),
        **read_common(fields, vocab, 50257, 50257, "init_std"),
        speech=SpeechConfig(
            mels=fields.integer("num_mel_bins", 80),
            positions=fields.integer("max_source_positions", 1500),
            **read_encoder(fields, hidden, vocab, USUAL),
        ),
    )


def write_config(config: ModelConfig) -> dict[str, object]:
    speech = config.speech
    assert speech is not None, "read with one"
    return {
        **write_both(config),
        "model_type": "whisper",
        "max_target_positions": config.max_position,
        "max_source_positions": speech.positions,
        "num_mel_bins": speech.mels,
        "tie_word_embeddings": config.tie_embeddings,
        **FIXED,
    }


def pieces(config: ModelConfig) -> dict[str, tuple[Piece, ...]]:
    assert config.speech is not None, "read with one"
    found = {**decoder_pieces(config, NAMES), **speech_pieces(config.speech, ENCODER)}
    for number, layer in enumerate(config.layers):
        theirs = f"{NAMES.prefix}{NAMES.layers}.{number}."
        path = f"layers.{number}."
        found |= cross_pieces(layer, config.hidden_size, path, theirs)
        biases = found[path + KEY_BIAS]
        found[path + KEY_BIAS] = tuple(one for one in biases if "k_proj" not in one.name)
    return found
