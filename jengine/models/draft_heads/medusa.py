"""Medusa: heads that each predict one position further ahead.

In: the hidden state of a row's last computed token. Out: logits of the tokens two, three, ...
positions ahead. Must not know caches or sampling.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import ModelConfig
from jengine.errors import CheckpointError
from jengine.models.draft_heads.heads import DraftHeads, another_model
from jengine.models.linear import Factory, Linear
from jengine.models.tensors.checkpoint import Piece

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int

Pieces = dict[str, tuple[Piece, ...]]
# config.json keys of the number of heads, and of layers per head.
HEADS = ("medusa_num_heads", "num_heads")
LAYERS = ("medusa_num_layers", "num_hidden_layers")


class MedusaHead(nnx.Module):
    """Residual layers x + silu(linear(x)), and a matmul to the vocabulary."""

    def __init__(self, factory: Factory, layers: int, *, bias: bool):
        hidden, vocab = factory.config.hidden_size, factory.config.vocab_size
        self.layers = nnx.List(
            [
                Linear(factory, (hidden,), (hidden,), ("embed", None), bias=bias)
                for _ in range(layers)
            ]
        )
        self.head = Linear(factory, (hidden,), (vocab,), ("embed", "vocab"))

    def __call__(
        self, x: Float[Array, "rows hidden"], live: Int[Array, " rows"]
    ) -> Float32[Array, "rows vocab"]:
        for layer in self.layers:
            x = layer(x, activation="silu", residual=x, live=live)
        return self.head(x, live=live)


class Medusa(nnx.Module):
    def __init__(self, config: ModelConfig, heads: int, layers: int, *, bias: bool):
        factory = Factory(config, jnp.dtype(config.dtype), None)
        self.heads = nnx.List([MedusaHead(factory, layers, bias=bias) for _ in range(heads)])


def read_medusa(
    hf: Mapping[str, Any], config: ModelConfig, stored: Collection[str] = ()
) -> DraftHeads:
    """Build the heads described by a Medusa config.json for the target `config`. Raises
    CheckpointError."""
    heads, layers = first_of(hf, HEADS), first_of(hf, LAYERS, 1)
    for name, own in (("hidden_size", config.hidden_size), ("vocab_size", config.vocab_size)):
        if hf.get(name, own) != own:
            raise another_model("Medusa heads", name, hf[name], own)
    if hf.get("truncated_vocab_size") not in (None, config.vocab_size):
        raise CheckpointError(
            f"config.json: truncated_vocab_size={hf['truncated_vocab_size']}: Medusa heads over a "
            "part of the vocabulary are not built."
        )
    bias = bool(hf.get("medusa_fc_bias", False))
    model = Medusa(config, heads, layers, bias=bias)
    return DraftHeads(model, pieces(config, heads, layers, bias=bias))


def first_of(hf: Mapping[str, Any], names: tuple[str, ...], default: int | None = None) -> int:
    """Positive integer under the first of these keys that is present. Raises CheckpointError."""
    value = next((hf[name] for name in names if name in hf), default)
    if type(value) is not int or value < 1:
        raise CheckpointError(
            f"config.json: {' or '.join(names)} is {value!r}, expected a positive integer."
        )
    return value


def pieces(config: ModelConfig, heads: int, layers: int, *, bias: bool) -> Pieces:
    """Checkpoint tensors by parameter path."""
    hidden, found = config.hidden_size, {}
    for index in range(heads):
        for layer in range(layers):
            ours, theirs = f"heads.{index}.layers.{layer}", f"blocks.{index}.layers.{layer}"
            weight = Piece(f"{theirs}.weight", (hidden, hidden), transpose=True)
            found[f"{ours}.weight"] = (weight,)
            if bias:
                found[f"{ours}.bias"] = (Piece(f"{theirs}.bias", (hidden,)),)
        shape = (config.vocab_size, hidden)
        head = Piece(f"lm_heads.{index}.weight", shape, transpose=True)
        found[f"heads.{index}.head.weight"] = (head,)
    return found
