"""Vision-language model: the shared decoder, with a vision tower's embeddings at image tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jengine.models.context import GivenEmbeddings, whole_sequences
from jengine.models.decoder import Decoder
from jengine.models.linear import Factory
from jengine.models.vision_tower import PatchInput, VisionTower

TOWER_PATH = "vision."  # path prefix of the tower's parameters

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float32, Int, Int32


class Pictures(NamedTuple):
    """Images of whole sequences, for scoring."""

    patches: PatchInput  # of each sequence, stacked
    places: Any  # i32[batch, embeddings] positions in the sequence; out of range: padding
    mrope_positions: Any  # i32[3, batch, length] positions by frame, row and column


class VisionDecoder(Decoder):
    """A decoder with a vision tower."""

    def add_parts(self, factory: Factory) -> None:
        vision = factory.config.vision
        assert vision is not None, "a family with a tower reads its config"
        self.vision = VisionTower(factory, vision)

    def encode(self, patches: PatchInput) -> Float32[Array, "tokens width"]:
        """Embeddings of images; rows of padding patches are unused."""
        return self.vision(patches)

    def score(
        self, tokens: Int[Array, "batch length"], pictures: Pictures | None = None
    ) -> Float32[Array, "batch length vocab"]:
        """Logits of whole sequences, without a cache. `pictures` is made by `picture_batch` and may
        be padded to longer sequences."""
        context = whole_sequences(tokens.shape)
        if pictures is not None:
            length = tokens.shape[1]
            context.mrope_positions = pictures.mrope_positions[..., :length]
            given = jax.vmap(lambda *one: self._stands_at(length, *one))(
                pictures.patches, pictures.places
            )
            context.given = (given._replace(is_final=True),)
        return self.logits(self(tokens, context))

    def _stands_at(
        self, length: int, patches: PatchInput, places: Int32[Array, " embeddings"]
    ) -> GivenEmbeddings:
        """One sequence's image embeddings at their positions."""
        found = self.encode(patches)
        rows = jnp.zeros((length, found.shape[1]), found.dtype)
        return GivenEmbeddings(
            rows.at[places].set(found, mode="drop"),
            jnp.zeros(length, bool).at[places].set(True, mode="drop"),
        )
