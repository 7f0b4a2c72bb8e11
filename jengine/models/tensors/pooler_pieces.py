"""Checkpoint tensors of a pooling head, by parameter path.

In: a ModelConfig with pooling. Must not know files or devices.
"""

from __future__ import annotations

from jengine.config import HeadLayer, ModelConfig
from jengine.models.tensors.checkpoint import EVERY, Piece
from jengine.models.tensors.matrix_pieces import Pieces


def pooler_pieces(config: ModelConfig) -> Pieces:
    """Pieces of the matmuls after pooling."""
    assert config.pooling is not None, "a model that writes"
    pieces: Pieces = {}
    inputs = config.hidden_size
    for index, layer in enumerate(config.pooling.head):
        ours = f"pooler.layers.{index}"
        pieces[f"{ours}.linear.weight"] = weight_pieces(config, layer, inputs)
        if layer.bias:
            pieces[f"{ours}.linear.bias"] = (Piece(f"{layer.name}.bias", (layer.outputs,)),)
        if layer.norm is not None:
            pieces[f"{ours}.norm.weight"] = (Piece(f"{layer.norm}.weight", (layer.outputs,)),)
            if layer.norm_bias:
                pieces[f"{ours}.norm.bias"] = (Piece(f"{layer.norm}.bias", (layer.outputs,)),)
        inputs = layer.outputs
    return pieces


def weight_pieces(config: ModelConfig, layer: HeadLayer, inputs: int) -> tuple[Piece, ...]:
    """The matrix [outputs, inputs], or selected rows of a vocabulary-sized one."""
    name = f"{layer.name}.weight"
    if not layer.rows:
        return (Piece(name, (layer.outputs, inputs), transpose=True),)
    return tuple(
        Piece(
            name, (config.vocab_size, inputs), (EVERY, slice(index, index + 1)),
            transpose=True, source=(slice(row, row + 1),),
        )
        for index, row in enumerate(layer.rows)
    )  # fmt: skip
