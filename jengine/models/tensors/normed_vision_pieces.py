"""Checkpoint tensors of Gemma 4's vision tower, by parameter path.

In: a VisionConfig. Must not know files or devices.
"""

from __future__ import annotations

from jengine.config import VisionConfig
from jengine.models.tensors.checkpoint import EVERY, Piece
from jengine.models.tensors.matrix_pieces import Pieces

TOWER = "model.vision_tower."
PROJECTION = "model.embed_vision.embedding_projection.weight"
NORMS = {
    "before_attention": "input_layernorm",
    "after_attention": "post_attention_layernorm",
    "before_mlp": "pre_feedforward_layernorm",
    "after_mlp": "post_feedforward_layernorm",
}


def normed_vision_pieces(vision: VisionConfig) -> Pieces:
    """Pieces of the tower, at `vision.` in the model."""
    hidden, width = vision.hidden_size, vision.merger.width
    pieces: Pieces = {
        "patch_weight": _patch(vision),
        "axis_table": (
            Piece(f"{TOWER}patch_embedder.position_embedding_table", (2, vision.axis_rows, hidden)),
        ),
        "merger.out.weight": (Piece(PROJECTION, (width, hidden), (), True),),
    }
    if vision.merger.standardizes:
        pieces["merger.shift"] = (Piece(f"{TOWER}std_bias", (hidden,)),)
        pieces["merger.scale"] = (Piece(f"{TOWER}std_scale", (hidden,)),)
    for layer in range(vision.num_layers):
        found = _block(vision, f"{TOWER}encoder.layers.{layer}.")
        pieces |= {f"blocks.{layer}.{path}": each for path, each in found.items()}
    return {f"vision.{path}": each for path, each in pieces.items()}


def _patch(vision: VisionConfig) -> tuple[Piece, ...]:
    """Patches have channels first here, and last in checkpoints."""
    name, area, channels = f"{TOWER}patch_embedder.input_proj.weight", vision.patch_size**2, 3
    return tuple(
        Piece(
            name, (vision.hidden_size, area * channels),
            (EVERY, slice(channel * area, (channel + 1) * area)),
            source=(EVERY, slice(channel, None, channels)),
        )
        for channel in range(channels)
    )  # fmt: skip


def _block(vision: VisionConfig, theirs: str) -> Pieces:
    hidden, inner, dim = vision.hidden_size, vision.intermediate_size, vision.head_dim
    heads = vision.num_heads * dim
    pieces: Pieces = {
        f"{path}.weight": (Piece(f"{theirs}{name}.weight", (hidden,)),)
        for path, name in NORMS.items()
    }
    for one in ("q", "k"):
        name = f"{theirs}self_attn.{one}_norm.weight"
        pieces[f"{one}_norm.weight"] = (Piece(name, (dim,)),)
    matrices = {
        **{one: (f"self_attn.{one}_proj", hidden, heads) for one in ("q", "k", "v")},
        "out": ("self_attn.o_proj", heads, hidden),
        **{one: (f"mlp.{one}_proj", hidden, inner) for one in ("gate", "up")},
        "down": ("mlp.down_proj", inner, hidden),
    }
    for path, (name, inputs, outputs) in matrices.items():
        weight = Piece(f"{theirs}{name}.linear.weight", (outputs, inputs), (), True)
        pieces[f"{path}.linear.weight"] = (weight,)
        for ours, ending in (("low", "min"), ("high", "max")) if vision.clamps else ():
            pieces[f"{path}.{ours}"] = tuple(
                Piece(f"{theirs}{name}.{side}_{ending}", (), (number,))
                for number, side in enumerate(("input", "output"))
            )
    return pieces
