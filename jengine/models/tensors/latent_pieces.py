"""Checkpoint tensors of latent attention, under names common to its families.

In: a LatentConfig. Out: pieces by parameter path. Must not know files or devices.
"""

from __future__ import annotations

from jengine.config import LatentConfig
from jengine.models.tensors.checkpoint import Piece

Pieces = dict[str, tuple[Piece, ...]]
# Our module -> checkpoint module; `q` has two names.
MODULES = {
    "q_down": "q_a_proj",
    "q_norm": "q_a_layernorm",
    "kv_down": "kv_a_proj_with_mqa",
    "kv_norm": "kv_a_layernorm",
    "kv_up": "kv_b_proj",
    "out": "o_proj",
}


def latent_pieces(hidden: int, config: LatentConfig, layer: str) -> Pieces:
    """Pieces by path within the layer; `layer` is the prefix of its tensors."""
    queries, rank = config.num_heads * config.query_dim, config.query_rank
    entry = config.kv_rank + config.rope_dim
    up = config.num_heads * (config.nope_dim + config.value_dim)
    mixed = config.num_heads * config.value_dim

    def named(ours: str, kind: str) -> str:
        theirs = ("q_proj" if rank is None else "q_b_proj") if ours == "q" else MODULES[ours]
        return f"{layer}self_attn.{theirs}.{kind}"

    def matrix(ours: str, outputs: int, inputs: int) -> Pieces:
        piece = Piece(named(ours, "weight"), (outputs, inputs), transpose=True)
        return {f"attention.{ours}.weight": (piece,)}

    def vector(ours: str, kind: str, size: int) -> Pieces:
        return {f"attention.{ours}.{kind}": (Piece(named(ours, kind), (size,)),)}

    pieces: Pieces = {
        **matrix("q", queries, hidden if rank is None else rank),
        **matrix("kv_down", entry, hidden),
        **vector("kv_norm", "weight", config.kv_rank),
        "attention.kv_up.weight": (Piece(named("kv_up", "weight"), (up, config.kv_rank)),),
        **matrix("out", hidden, mixed),
    }
    shortened = {"kv_down": entry, "out": hidden}
    if rank is not None:
        pieces |= matrix("q_down", rank, hidden) | vector("q_norm", "weight", rank)
        shortened["q_down"] = rank
    if config.bias:
        for ours, size in shortened.items():
            pieces |= vector(ours, "bias", size)
    return pieces
