"""Multi-token prediction (MTP): an extra decoder layer trained with the model.

In: hidden states of the model, or its own, and the token after each. Out: its own hidden states,
and logits. Must not know sampling.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import RECURRENT, ModelConfig
from jengine.errors import CheckpointError
from jengine.models.context import StepContext
from jengine.models.decoder import DecoderLayer
from jengine.models.draft_heads.heads import (
    EMBED,
    DraftHeads,
    embedded,
    matrix,
    matrix_pieces,
    own_embedding,
    plain_factory,
)
from jengine.models.linear import Embedding
from jengine.models.norms import make_norm
from jengine.models.tensors.checkpoint import DraftingNames, IgnoredTensor, Names, Piece
from jengine.models.tensors.decoder_pieces import layer_pieces

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int

# Tensors that are copies of the model's in most files.
SHARED_HEAD = "shared_head.head.weight"
COPIES = (EMBED, SHARED_HEAD)


class Mtp(nnx.Module):
    """Matmul over [normalised embedding, normalised hidden], a decoder layer, norm and head.

    Of several MTP layers only the first is used, repeatedly: when it drafts, it alone has a KV
    cache of all tokens.
    """

    def __init__(
        self,
        config: ModelConfig,
        embed: Embedding | None = None,
        *,
        has_head: bool = False,
        skips_first: bool = True,
    ):
        self.config = config
        self.skips_first = skips_first
        factory, hidden = plain_factory(config), config.hidden_size
        self.embed = embed
        self.embed_norm, self.hidden_norm, self.norm = (
            make_norm(factory, (hidden,), ("embed",)) for _ in range(3)
        )
        self.fc = matrix(config, 2 * hidden, hidden)
        self.layers = nnx.List([DecoderLayer(factory, 0)])
        self.head = matrix(config, hidden, config.vocab_size) if has_head else None

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
        if self.skips_first:  # as in training
            embeddings = jnp.where(context.positions[..., None] == 0, 0.0, embeddings)
        normed = self.hidden_norm(hidden.astype(jnp.float32))
        both = jnp.concatenate([self.embed_norm(embeddings), normed], axis=-1)
        x = self.layers[0](self.fc(both, live=context.live), context)
        return self.norm(x)

    def logits(
        self, states: Float[Array, "rows hidden"], live: Int[Array, " rows"], target: Any
    ) -> Float32[Array, "rows vocab"]:
        """Logits by its own head, or the model's."""
        if self.head is None:
            return target.live_logits(states, live)
        return self.head(states, live=live)


def layer_prefix(config: ModelConfig, names: Names) -> str:
    """Prefix of the MTP layer's tensors."""
    root = "" if names.drafting is None else names.drafting.root
    return root or f"{names.prefix}{names.layers}.{len(config.layers)}."


def read_mtp(
    hf: Mapping[str, Any], config: ModelConfig, names: Names, stored: Collection[str] = ()
) -> DraftHeads:
    """Build the MTP layer of the model `config`. `stored`: its tensor names without their prefix.
    Raises CheckpointError."""
    own_names = names.drafting or DraftingNames()
    count = hf.get(own_names.count, own_names.usual)
    if names.drafting is None or type(count) is not int or count < 1:
        raise CheckpointError(
            f"config.json: {config.architecture} with {own_names.count}={count!r}: method='mtp' "
            "expected a model with an MTP layer, such as DeepSeek-V3, GLM-4.5 or Qwen3-Next. Use "
            "another method."
        )
    attending = [layer for layer in config.layers if not isinstance(layer.mixer, RECURRENT)]
    own = replace(config, layers=tuple(attending[-1:]), quantization=None, tie_embeddings=True)
    embed, pieces = own_embedding(own, stored)
    hidden, has_head = own.hidden_size, SHARED_HEAD in stored
    pieces |= layer_pieces(own, own.layers[0], names, "layers.0.", own_names.layer)
    pieces |= {
        f"{ours}.weight": (Piece(f"{theirs}.weight", (hidden,)),)
        for ours, theirs in (
            ("embed_norm", own_names.embed_norm),
            ("hidden_norm", own_names.hidden_norm),
            ("norm", own_names.last_norm),
        )
    }
    pieces["fc.weight"] = matrix_pieces(own_names.matrix, 2 * hidden, hidden)
    if has_head:
        pieces["head.weight"] = matrix_pieces("shared_head.head", hidden, own.vocab_size)
    copies = tuple(
        IgnoredTensor(name.replace(".", r"\."), "it is a copy of the model's own")
        for name in COPIES
        if name not in stored
    )
    layer = Mtp(own, embed, has_head=has_head, skips_first=own_names.skips_first)
    return DraftHeads(layer, pieces, own.cache_specs, (), copies)
