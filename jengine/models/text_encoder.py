"""Encoder-decoder text model with an encoder of its own blocks.

In: packed token ids of any number of texts. Out: cross attention keys and values of every decoder
layer, kept while a request runs. Must not know prompts or caches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import jax
from flax import nnx
from jax import Array

from jengine.config import TextEncoderConfig
from jengine.models.cross_attention import keys_and_values_of
from jengine.models.decoder import Decoder
from jengine.models.linear import Embedding, Factory
from jengine.models.norms import make_norm
from jengine.models.vision_tower import VisionBlock

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float32


class TextInput(NamedTuple):
    """Token ids of packed texts, with positions and segment ids."""

    ids: Array  # i32[tokens]
    positions: Array  # i32[tokens] in the text
    segments: Array  # i32[tokens] index of the text; -1: padding


class TextEncoder(nnx.Module):
    """Positions, a norm, and bidirectional blocks within each text."""

    def __init__(self, factory: Factory, encoder: TextEncoderConfig):
        hidden = encoder.hidden_size
        self.offset = encoder.position_offset
        factory = replace(factory, config=replace(factory.config, hidden_size=hidden))
        self.position_embed = Embedding(factory, encoder.positions + self.offset, (None, None))
        self.embed_norm = make_norm(factory, (hidden,), (None,))
        layers = range(encoder.num_layers)
        self.blocks = nnx.List([VisionBlock(factory, encoder, layer) for layer in layers])

    def __call__(
        self, x: Float32[Array, "tokens hidden"], given: TextInput
    ) -> Float32[Array, "tokens hidden"]:
        x = self.embed_norm(x + self.position_embed(given.positions + self.offset))
        for layer, block in enumerate(self.blocks):
            with jax.named_scope(f"encoder_{layer}"):
                x = block(x, given.segments[None], None)
        return x


class EncoderDecoder(Decoder):
    """Decoder and encoder over one vocabulary."""

    def add_parts(self, factory: Factory) -> None:
        encoder = factory.config.text_encoder
        assert encoder is not None, "a family with an encoder reads its config"
        self.encoder = TextEncoder(factory, encoder)

    def encode(self, given: TextInput) -> Float32[Array, "tokens width"]:
        """Cross attention keys and values of all layers per source token."""
        encoded = self.encoder(self.scaled(self.embed(given.ids)), given)
        return keys_and_values_of(self.layers, encoded)
