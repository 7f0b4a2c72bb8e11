"""The shared decoder beside a vision tower, whose embeddings stand in place of looked up ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax import Array

from jengine.models.decoder import Decoder
from jengine.models.linear import Factory
from jengine.models.vision_tower import PatchInput, VisionTower

TOWER_PATH = "vision."  # where the paths of a tower's parameters begin

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float32


class VisionDecoder(Decoder):
    """A decoder and the tower that makes embeddings of images for it."""

    def add_parts(self, factory: Factory) -> None:
        vision = factory.config.vision
        assert vision is not None, "a family with a tower reads its config"
        self.vision = VisionTower(factory, vision)

    def encode(self, patches: PatchInput) -> Float32[Array, "tokens width"]:
        """The embeddings of images; tokens of padding are not used."""
        return self.vision(patches)
