"""Checkpoint tensors of the shared decoder, by parameter path.

In: a ModelConfig and a family's Names. Must not know files or devices.
"""

from __future__ import annotations

from jengine.config import (
    PLACES,
    RECURRENT,
    AttentionConfig,
    HeadTransformConfig,
    LatentConfig,
    LayerConfig,
    LayerInputsConfig,
    MixerConfig,
    ModelConfig,
    SideBySideConfig,
)
from jengine.models.tensors.attention_pieces import attention_pieces
from jengine.models.tensors.checkpoint import Names, Piece
from jengine.models.tensors.ffn_pieces import ffn_pieces
from jengine.models.tensors.latent_pieces import latent_pieces
from jengine.models.tensors.matrix_pieces import Pieces, biases, matrices
from jengine.models.tensors.recurrent_pieces import recurrent_pieces


def decoder_pieces(config: ModelConfig, names: Names) -> Pieces:
    """Pieces of the whole shared decoder."""
    vocab, hidden = config.vocab_size, config.hidden_size
    pieces: Pieces = {"embed.weight": (Piece(names.embed_weight, (vocab, hidden)),)}
    if config.learned_positions:
        name = f"{names.prefix}{names.positions}.weight"
        rows = config.max_position + config.position_offset
        pieces["position_embed.weight"] = (Piece(name, (rows, hidden)),)
    if config.token_types:
        name = f"{names.prefix}{names.types}.weight"
        pieces["type_embed.weight"] = (Piece(name, (config.token_types, hidden)),)
    if config.embed_norm:
        pieces |= _norm(config, "embed_norm", f"{names.prefix}{names.embed_norm}", (hidden,))
    if config.norm_places != "sums":
        pieces |= _norm(config, "norm", f"{names.prefix}{names.final_norm}", (hidden,))
    if config.has_own_head:
        pieces["head.weight"] = (Piece(f"{names.head}.weight", (vocab, hidden), transpose=True),)
        if config.head_bias:
            pieces["head.bias"] = (Piece(f"{names.head}.bias", (vocab,)),)
    if config.has_logits_bias:
        pieces["logits_bias"] = (Piece(f"{names.head}.bias", (vocab,)),)
    if config.head_transform is not None and config.pooling is None:
        pieces |= _head_transform(config, config.head_transform, names)
    if config.layer_inputs is not None:
        pieces |= _layer_inputs(config, config.layer_inputs, names)
    number = 0  # layer number in the checkpoint
    for layer, own in enumerate(config.layers):
        theirs = f"{names.prefix}{names.layers}.{number}."
        if names.halves_apart:
            number += bool(own.ffn.active_size)
        second = f"{names.prefix}{names.layers}.{number}."
        pieces |= layer_pieces(config, own, names, f"layers.{layer}.", theirs, second)
        number += 1
    return pieces


def layer_pieces(
    config: ModelConfig, own: LayerConfig, names: Names, ours: str, theirs: str,
    second: str | None = None,
) -> Pieces:  # fmt: skip
    """Pieces of one layer; `ours` and `theirs` are its prefixes. `second`: prefix of its
    feed-forward block's tensors, where different."""
    second = theirs if second is None else second
    found = {
        **_layer_norms(config, own, names, theirs, second),
        **_ending(config, names, second),
        **_mixer(config.hidden_size, own.mixer, names, theirs),
        **(ffn_pieces(config.hidden_size, own.ffn, names, second) if own.ffn.active_size else {}),
    }
    return {ours + path: pieces for path, pieces in found.items()}


def _norm(config: ModelConfig, path: str, name: str, shape: tuple[int, ...]) -> Pieces:
    if config.norm.endswith("bare"):
        return {}
    pieces: Pieces = {f"{path}.weight": (Piece(f"{name}.weight", shape),)}
    if config.norm in ("layer", "layer_one_plus"):
        pieces[f"{path}.bias"] = (Piece(f"{name}.bias", shape),)
    return pieces


def _head_transform(config: ModelConfig, transform: HeadTransformConfig, names: Names) -> Pieces:
    """Pieces of the transform before the output head."""
    dense, shape = [names.head_dense], (config.hidden_size,)
    pieces = {
        "head_transform.dense.weight": matrices(names, dense, config.hidden_size, shape, [()]),
        **_norm(config, "head_transform.norm", names.head_norm, shape),
    }
    if transform.bias:
        pieces["head_transform.dense.bias"] = biases(dense, shape, [()])
    return pieces


def _layer_inputs(config: ModelConfig, inputs: LayerInputsConfig, names: Names) -> Pieces:
    """Pieces of the per-layer inputs."""
    width, prefix = len(config.layers) * inputs.size, names.prefix
    project = [prefix + names.layer_inputs_project]
    return {
        "layer_inputs.table.weight": (
            Piece(f"{prefix}{names.layer_inputs}.weight", (inputs.rows, width)),
        ),
        "layer_inputs.project.weight": matrices(names, project, config.hidden_size, (width,), [()]),
        **_norm(config, "layer_inputs.norm", prefix + names.layer_inputs_norm, (inputs.size,)),
    }


def _ending(config: ModelConfig, names: Names, layer: str) -> Pieces:
    """Pieces of a layer's ending."""
    pieces: Pieces = {}
    hidden, inputs = config.hidden_size, config.layer_inputs
    if inputs is not None:
        gate, out = [layer + names.ending_gate], [layer + names.ending_out]
        pieces["ending.gate.weight"] = matrices(names, gate, hidden, (inputs.size,), [()])
        pieces["ending.out.weight"] = matrices(names, out, inputs.size, (hidden,), [()])
        pieces |= _norm(config, "ending.norm", layer + names.ending_norm, (hidden,))
    if config.layer_factors:
        pieces["ending.factor"] = (Piece(layer + names.layer_factor, (1,)),)
    return pieces


def _layer_norms(
    config: ModelConfig, own: LayerConfig, names: Names, layer: str, second: str
) -> Pieces:
    pieces: Pieces = {}
    theirs = {
        "before": {"before_attention": names.before_attention, "before_mlp": names.before_mlp},
        "after": {"after_attention": names.after_attention, "after_mlp": names.after_mlp},
    }
    for place, found in theirs.items():
        if place not in PLACES[config.norm_places]:
            continue
        for path, name in found.items():
            of_mlp = path.endswith("mlp")
            if path == "before_attention" and not own.attention_norm:
                continue
            if of_mlp and (config.block == "parallel_one_norm" or not own.ffn.active_size):
                continue
            prefix = second if of_mlp else layer
            pieces |= _norm(config, path, prefix + name, (config.hidden_size,))
    return pieces


def _mixer(hidden: int, config: MixerConfig, names: Names, layer: str) -> Pieces:
    if isinstance(config, LatentConfig):
        return latent_pieces(hidden, config, layer)
    if isinstance(config, SideBySideConfig):
        parts = {"attention": config.attention, "recurrent": config.recurrent}
        return {
            path.replace("attention.", f"attention.{part}.", 1): pieces
            for part, own in parts.items()
            for path, pieces in _mixer(hidden, own, names, layer).items()
        }
    if isinstance(config, RECURRENT):
        return recurrent_pieces(hidden, config, f"{layer}{names.recurrent}.")
    assert isinstance(config, AttentionConfig), "a family reads layers with shared blocks"
    return attention_pieces(hidden, config, names, layer)
