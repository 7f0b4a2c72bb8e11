"""The checkpoint tensors of the shared decoder: parameter path -> pieces.

In: a ModelConfig and a family's Names. Must not know files or devices.
"""

from __future__ import annotations

from jengine.config import LatentConfig, MixerConfig, ModelConfig
from jengine.models.attention_pieces import attention_pieces
from jengine.models.checkpoint import Names, Piece
from jengine.models.ffn_pieces import ffn_pieces
from jengine.models.latent_pieces import latent_pieces
from jengine.models.matrix_pieces import Pieces


def decoder_pieces(config: ModelConfig, names: Names) -> Pieces:
    """Parameter path -> pieces, for the shared decoder body."""
    vocab, hidden = config.vocab_size, config.hidden_size
    pieces: Pieces = {"embed.weight": (Piece(names.embed_weight, (vocab, hidden)),)}
    if config.learned_positions:
        name = f"{names.prefix}{names.positions}.weight"
        rows = config.max_position + config.position_offset
        pieces["position_embed.weight"] = (Piece(name, (rows, hidden)),)
    pieces |= _norm(config, "norm", f"{names.prefix}{names.final_norm}", (hidden,))
    if not config.tie_embeddings:
        pieces["head.weight"] = (Piece(f"{names.head}.weight", (vocab, hidden), transpose=True),)
        if config.head_bias:
            pieces["head.bias"] = (Piece(f"{names.head}.bias", (vocab,)),)
    for layer, own in enumerate(config.layers):
        theirs = f"{names.prefix}{names.layers}.{layer}."
        ours = {
            **_layer_norms(config, names, theirs),
            **_mixer(config.hidden_size, own.mixer, names, theirs),
            **ffn_pieces(config.hidden_size, own.ffn, names, theirs),
        }
        pieces.update({f"layers.{layer}.{path}": found for path, found in ours.items()})
    return pieces


def _norm(config: ModelConfig, path: str, name: str, shape: tuple[int, ...]) -> Pieces:
    pieces: Pieces = {f"{path}.weight": (Piece(f"{name}.weight", shape),)}
    if config.norm in ("layer", "layer_one_plus"):
        pieces[f"{path}.bias"] = (Piece(f"{name}.bias", shape),)
    return pieces


def _layer_norms(config: ModelConfig, names: Names, layer: str) -> Pieces:
    pieces: Pieces = {}
    theirs = {
        "before": {"before_attention": names.before_attention, "before_mlp": names.before_mlp},
        "after": {"after_attention": names.after_attention, "after_mlp": names.after_mlp},
    }
    for place, found in theirs.items():
        if config.norm_places not in (place, "around"):
            continue
        for path, name in found.items():
            if not (config.block == "parallel_one_norm" and path.endswith("mlp")):
                pieces |= _norm(config, path, layer + name, (config.hidden_size,))
    return pieces


def _mixer(hidden: int, config: MixerConfig, names: Names, layer: str) -> Pieces:
    if isinstance(config, LatentConfig):
        return latent_pieces(hidden, config, layer)
    return attention_pieces(hidden, config, names, layer)
