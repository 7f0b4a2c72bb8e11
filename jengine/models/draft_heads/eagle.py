"""EAGLE: predicts the next hidden state with decoder layers; logits come from the target's head.

In: the target's hidden states, or its own predictions, and the token after each. Out: predicted
hidden states. Must not know sampling.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import ModelConfig
from jengine.models.context import StepContext
from jengine.models.decoder import DecoderLayer
from jengine.models.draft_heads.heads import (
    DraftHeads,
    another_model,
    embedded,
    matrix,
    matrix_pieces,
    own_embedding,
    plain_factory,
    read_layers,
)
from jengine.models.linear import Embedding
from jengine.models.norms import NoNorm
from jengine.models.tensors.checkpoint import Names
from jengine.models.tensors.decoder_pieces import layer_pieces

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int


class Eagle(nnx.Module):
    """fc over [embedding, hidden], then layers of the target's kind, the first without an input
    norm."""

    def __init__(self, config: ModelConfig, embed: Embedding | None = None):
        self.config = config
        factory, hidden = plain_factory(config), config.hidden_size
        self.embed = embed
        self.fc = matrix(config, 2 * hidden, hidden)
        self.layers = nnx.List([DecoderLayer(factory, i) for i in range(len(config.layers))])
        self.layers[0].before_attention = NoNorm()

    def states(self, hidden: Array, kept: Mapping[str, Array], live: Array | None = None) -> Array:
        """Inputs from the target: its last hidden states."""
        return hidden

    def __call__(
        self,
        tokens: Int[Array, " tokens"],
        hidden: Float[Array, "tokens hidden"],
        context: StepContext,
        target: Any,
    ) -> Float32[Array, "tokens hidden"]:
        embeddings = embedded(self.embed, target, tokens)
        both = jnp.concatenate([embeddings, hidden.astype(jnp.float32)], axis=-1)
        x = self.fc(both, live=context.live)
        for layer in self.layers:
            x = layer(x, context)
        return x

    def logits(
        self, states: Float[Array, "rows hidden"], live: Int[Array, " rows"], target: Any
    ) -> Float32[Array, "rows vocab"]:
        """Logits by the target model's head."""
        return target.live_logits(states, live)


def read_eagle(
    hf: Mapping[str, Any], config: ModelConfig, stored: Collection[str] = ()
) -> DraftHeads:
    """Build the head described by an EAGLE config.json for the target `config`. `stored`: tensor
    names in its file. Raises CheckpointError."""
    own, family = read_layers(hf, config)
    if own.hidden_size != config.hidden_size:
        raise another_model("an EAGLE head", "hidden_size", own.hidden_size, config.hidden_size)
    names: Names = family.NAMES
    embed, pieces = own_embedding(own, stored)
    for index, layer in enumerate(own.layers):
        theirs = f"{names.layers}.{index}."
        pieces |= layer_pieces(own, layer, names, f"layers.{index}.", theirs)
    del pieces["layers.0.before_attention.weight"]
    pieces["fc.weight"] = matrix_pieces("fc", 2 * own.hidden_size, own.hidden_size)
    return DraftHeads(Eagle(own, embed), pieces, own.cache_specs)
