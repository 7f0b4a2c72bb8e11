"""Checkpoint tensors of speech and text encoders and of cross attention, by parameter path.

Speech checkpoints have no key bias; that part of the parameter is zero. Must not know files or
devices.
"""

from __future__ import annotations

from typing import Any

from jengine.config import LayerConfig, SpeechConfig, TextEncoderConfig
from jengine.models.tensors.checkpoint import EVERY, Piece
from jengine.models.tensors.matrix_pieces import Pieces

TAPS = 3


def speech_pieces(speech: SpeechConfig, prefix: str) -> Pieces:
    """Pieces of the speech encoder, at `speech.` in the model."""
    hidden = speech.hidden_size
    pieces: Pieces = {
        "first.weight": (Piece(f"{prefix}conv1.weight", (hidden, speech.mels, TAPS)),),
        "first.bias": (Piece(f"{prefix}conv1.bias", (hidden,)),),
        "second.weight": (Piece(f"{prefix}conv2.weight", (hidden, hidden, TAPS)),),
        "second.bias": (Piece(f"{prefix}conv2.bias", (hidden,)),),
        "table": (Piece(f"{prefix}embed_positions.weight", (speech.positions, hidden)),),
        **norm("norm", f"{prefix}layer_norm", hidden),
    }
    pieces |= block_pieces(speech, prefix, "before", key_bias=False)
    return {f"speech.{path}": each for path, each in pieces.items()}


def text_pieces(encoder: TextEncoderConfig, prefix: str) -> Pieces:
    """Pieces of a post-norm text encoder, at `encoder.` in the model."""
    shape = (encoder.positions + encoder.position_offset, encoder.hidden_size)
    pieces: Pieces = {
        "position_embed.weight": (Piece(f"{prefix}embed_positions.weight", shape),),
        **norm("embed_norm", f"{prefix}layernorm_embedding", encoder.hidden_size),
        **block_pieces(encoder, prefix, "after", key_bias=True),
    }
    return {f"encoder.{path}": each for path, each in pieces.items()}


def block_pieces(
    encoder: SpeechConfig | TextEncoderConfig, prefix: str, place: str, *, key_bias: bool
) -> Pieces:
    """Pieces of encoder blocks; `place`: norms "before" or "after" each block."""
    hidden, inner, pieces = encoder.hidden_size, encoder.intermediate_size, dict[str, Any]()
    for layer in range(encoder.num_layers):
        theirs = f"{prefix}layers.{layer}."
        attention = f"{theirs}self_attn."
        own = {
            **norm(f"{place}_attention", f"{theirs}self_attn_layer_norm", hidden),
            **norm(f"{place}_mlp", f"{theirs}final_layer_norm", hidden),
            **projections("qkv", attention, "qkv", hidden, hidden, key_bias=key_bias),
            **matrix("out", f"{attention}out_proj", hidden, hidden),
            **matrix("up", f"{theirs}fc1", hidden, inner),
            **matrix("down", f"{theirs}fc2", inner, hidden),
        }
        pieces |= {f"blocks.{layer}.{path}": each for path, each in own.items()}
    return pieces


def cross_pieces(
    layer: LayerConfig, hidden: int, path: str, theirs: str, place: str = "before",
    *, key_bias: bool = False,
) -> Pieces:  # fmt: skip
    """Pieces of a layer's cross attention; `place` as in `block_pieces`."""
    cross = layer.cross
    if cross is None:
        return {}
    width, kv = cross.num_heads * cross.head_dim, cross.num_kv_heads * cross.head_dim
    attention = f"{theirs}encoder_attn."
    own = {
        **norm(f"{place}_cross", f"{theirs}encoder_attn_layer_norm", hidden),
        **matrix("cross.query", f"{attention}q_proj", hidden, width),
        **projections("cross.kv", attention, "kv", hidden, kv, key_bias=key_bias),
        **matrix("cross.out", f"{attention}out_proj", width, hidden),
    }
    return {f"{path}{name}": each for name, each in own.items()}


def norm(path: str, name: str, size: int) -> Pieces:
    """Pieces of a layer norm."""
    weight, bias = (Piece(f"{name}.{part}", (size,)) for part in ("weight", "bias"))
    return {f"{path}.weight": (weight,), f"{path}.bias": (bias,)}


def matrix(path: str, name: str, inputs: int, outputs: int) -> Pieces:
    """Pieces of a matrix with bias."""
    return {
        f"{path}.weight": (Piece(f"{name}.weight", (outputs, inputs), (), True),),
        f"{path}.bias": (Piece(f"{name}.bias", (outputs,)),),
    }


def projections(
    path: str, theirs: str, letters: str, inputs: int, outputs: int, *, key_bias: bool
) -> Pieces:
    """Queries, keys and values fused into one parameter; the key bias may be missing."""
    named = [(number, letter, f"{theirs}{letter}_proj") for number, letter in enumerate(letters)]
    weights = [
        Piece(f"{name}.weight", (outputs, inputs), (EVERY, number), True)
        for number, _, name in named
    ]
    biases = [
        Piece(f"{name}.bias", (outputs,), (number,)) for number, letter, name in named
        if letter != "k" or key_bias
    ]  # fmt: skip
    return {f"{path}.weight": tuple(weights), f"{path}.bias": tuple(biases)}
