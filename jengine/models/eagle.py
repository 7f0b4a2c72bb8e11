"""EAGLE: a decoder layer that guesses the model's next hidden state from the last one.

In: hidden states of the model, or its own guesses at them, and the token after each. Out: guesses
at the hidden states of those tokens, which the model's own head turns into logits. Must not know
sampling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import ModelConfig
from jengine.errors import CheckpointError
from jengine.models import llama
from jengine.models.checkpoint import Names, Piece
from jengine.models.context import StepContext
from jengine.models.decoder import DecoderLayer
from jengine.models.decoder_pieces import decoder_pieces
from jengine.models.linear import Embedding, Factory, Linear
from jengine.models.norms import NoNorm

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int

Pieces = dict[str, tuple[Piece, ...]]


class Eagle(nnx.Module):
    """fc over [embedding, hidden], and layers of the model's kind. The first has no input norm."""

    def __init__(self, config: ModelConfig):
        self.config = config
        factory = Factory(config, jnp.dtype(config.dtype), None)
        hidden = config.hidden_size
        self.embed = Embedding(factory, config.vocab_size, ("vocab", "embed"))
        self.fc = Linear(factory, (2 * hidden,), (hidden,), ("embed", None))
        self.layers = nnx.List([DecoderLayer(factory, i) for i in range(len(config.layers))])
        self.layers[0].before_attention = NoNorm()

    def __call__(
        self,
        tokens: Int[Array, " tokens"],
        hidden: Float[Array, "tokens hidden"],
        context: StepContext,
    ) -> Float32[Array, "tokens hidden"]:
        both = jnp.concatenate([self.embed(tokens), hidden.astype(jnp.float32)], axis=-1)
        x = self.fc(both, live=context.live)
        for layer in self.layers:
            x = layer(x, context)
        return x


def read_eagle(hf: Mapping[str, Any], config: ModelConfig) -> tuple[Eagle, Pieces]:
    """The declarations that an EAGLE config.json describes, for the model `config`, and the
    checkpoint tensors that fill them."""
    fields = {key: value for key, value in hf.items() if key != "tie_word_embeddings"}
    own = llama.read_config({**fields, "tie_word_embeddings": True})
    own = replace(own, dtype=config.dtype)
    for name in ("hidden_size", "vocab_size"):
        given, expected = getattr(own, name), getattr(config, name)
        if given != expected:
            raise CheckpointError(
                f"config.json: an EAGLE head with {name}={given} for a model with {expected}: "
                "expected a head that was trained for this model."
            )
    found = decoder_pieces(own, Names(prefix=""))
    for absent in ("norm.weight", "layers.0.before_attention.weight"):
        del found[absent]
    hidden = own.hidden_size
    found["fc.weight"] = (Piece("fc.weight", (hidden, 2 * hidden), transpose=True),)
    return Eagle(own), found
