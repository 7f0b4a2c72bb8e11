"""Reads EAGLE-3 checkpoints: config.json and the tensors that fill the head.

In: config.json, and tensor names of the file. Out: declarations and pieces. Must not know files or
devices.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from jengine.config import AttentionConfig, ModelConfig
from jengine.errors import CheckpointError
from jengine.models.draft_heads.eagle3 import Eagle3, Eagle3Form
from jengine.models.draft_heads.heads import (
    HEAD,
    DraftHeads,
    Pieces,
    another_model,
    matrix_pieces,
    own_embedding,
    read_layers,
)
from jengine.models.norms import NoNorm
from jengine.models.tensors.attention_pieces import attention_pieces
from jengine.models.tensors.checkpoint import IgnoredTensor, Names, Piece
from jengine.models.tensors.decoder_pieces import layer_pieces
from jengine.models.tensors.ffn_pieces import ffn_pieces

# Names of the first layer in checkpoints.
FIRST_LAYERS = ("midlayer", "layers.0")
AUX_LAYERS = "eagle_aux_hidden_state_layer_ids"
# Tensor of offsets: entry i of the draft vocabulary is token i + d2t[i].
OFFSETS = "d2t"
# The inverse lookup, computed when read: each token's draft entry, or -1.
PLACES = "places of the model's tokens"
IGNORED = (IgnoredTensor("t2d", "which tokens the head knows follows from d2t"),)


def read_eagle3(
    hf: Mapping[str, Any], config: ModelConfig, stored: Collection[str] = ()
) -> DraftHeads:
    """Build the head described by an EAGLE-3 config.json for the target `config`. `stored`: tensor
    names in its file. Raises CheckpointError."""
    flat = {**hf.get("transformer_layer_config", {}), **hf}
    if "transformer_layer_config" in hf:
        flat["model_type"] = hf["transformer_layer_config"].get("model_type", "llama")
        flat.setdefault("norm_before_residual", True)
    own, family = read_layers(flat, config)
    form = read_form(flat, config)
    embed, pieces = own_embedding(own, stored)
    if embed is None and own.hidden_size != config.hidden_size:
        raise another_model(
            "an EAGLE-3 head without embed_tokens", "hidden_size", own.hidden_size,
            config.hidden_size,
        )  # fmt: skip
    has_head = not stored or HEAD in stored
    model = Eagle3(own, form, config, embed, has_head=has_head)
    pieces |= eagle3_pieces(own, model, form, config, family.NAMES, stored)
    ignored = IGNORED
    if model.knows_all:
        ignored = (*IGNORED, IgnoredTensor(OFFSETS, "the head knows all tokens"))
    return DraftHeads(model, pieces, own.cache_specs, model.points, ignored)


def read_form(hf: Mapping[str, Any], config: ModelConfig) -> Eagle3Form:
    """Variant of the head, from config.json."""
    eagle: Mapping[str, Any] = hf.get("eagle_config") or {}
    if hf.get("target_hidden_size") not in (None, config.hidden_size):
        given = hf["target_hidden_size"]
        raise another_model("an EAGLE-3 head", "target_hidden_size", given, config.hidden_size)
    count = len(config.layers)
    layers = hf.get(AUX_LAYERS) or eagle.get(AUX_LAYERS) or (2, count // 2, count - 3)
    if not eagle.get("use_aux_hidden_state", True):
        layers = ()
    if not all(type(one) is int and 0 <= one <= count for one in layers):
        raise CheckpointError(
            f"config.json: {AUX_LAYERS} is {list(layers)} (the default is 2, n // 2 and n - 3 of n "
            f"layers), expected numbers from 0 to {count}, the model's layers."
        )
    vocab = hf.get("draft_vocab_size") or config.vocab_size
    if type(vocab) is not int or not 0 < vocab <= config.vocab_size:
        raise CheckpointError(
            f"config.json: draft_vocab_size={vocab!r}, expected a number from 1 to "
            f"{config.vocab_size}, the model's vocabulary."
        )
    return Eagle3Form(
        tuple(layers),
        vocab,
        norm_before_residual=bool(hf.get("norm_before_residual", False)),
        norm_before_fc=bool(eagle.get("norm_before_fc", hf.get("norm_before_fc", False))),
        fc_norm=bool(hf.get("fc_norm", False)),
        norm_output=bool(hf.get("norm_output", False)),
    )


def eagle3_pieces(
    own: ModelConfig,
    model: Eagle3,
    form: Eagle3Form,
    target: ModelConfig,
    names: Names,
    stored: Collection[str],
) -> Pieces:
    """Checkpoint tensors by parameter path."""
    hidden, mixer = own.hidden_size, own.layers[0].mixer
    assert isinstance(mixer, AttentionConfig), "heads have plain attention"
    first = next((name for name in FIRST_LAYERS if f"{name}.hidden_norm.weight" in stored), None)
    theirs = f"{first or FIRST_LAYERS[0]}."
    norms = {
        "embed_norm": names.before_attention,
        "hidden_norm": "hidden_norm",
        "before_mlp": names.before_mlp,
    }
    found = attention_pieces(hidden, mixer, names, theirs, inputs=2 * hidden)
    found |= ffn_pieces(hidden, own.layers[0].ffn, names, theirs)
    found |= {f"{ours}.weight": (Piece(f"{theirs}{name}.weight", (hidden,)),)
              for ours, name in norms.items()}  # fmt: skip
    pieces = {f"first.{path}": piece for path, piece in found.items()}
    for index, layer in enumerate(own.layers[1:]):
        ours, name = f"layers.{index}.", f"{names.layers}.{index + 1}."
        pieces |= layer_pieces(own, layer, names, ours, name)
    pieces["norm.weight"] = (Piece("norm.weight", (hidden,)),)
    read = len(form.aux_layers) * target.hidden_size
    if model.fc is not None:
        pieces["fc.weight"] = matrix_pieces("fc", read, hidden)
    if not isinstance(model.norm_before_fc, NoNorm):
        pieces["norm_before_fc.weight"] = (Piece("input_norm.weight", (read,)),)
    for index in range(len(model.fc_norms)):
        shape = (target.hidden_size,)
        pieces[f"fc_norms.{index}.weight"] = (Piece(f"fc_norm.{index}.weight", shape),)
    if model.head is not None:
        pieces["head.weight"] = matrix_pieces("lm_head", hidden, form.draft_vocab)
    if not model.knows_all:
        pieces["places"] = (Piece(PLACES, (target.vocab_size,)),)
    return pieces
