"""The shared decoder beside a vision tower, whose embeddings stand in place of looked up ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import ModelConfig
from jengine.models.decoder import Decoder
from jengine.models.linear import Factory
from jengine.models.vision_tower import PatchInput, VisionTower
from jengine.quantization.scheme import WeightScheme
from jengine.quantization.unquantized import UNQUANTIZED

TOWER_PATH = "vision."  # where the paths of a tower's parameters begin

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float32


class VisionDecoder(Decoder):
    """A decoder and the tower that makes embeddings of images for it."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None,
        scheme: WeightScheme = UNQUANTIZED,
    ):
        super().__init__(config, dtype=dtype, rngs=rngs, scheme=scheme)
        assert config.vision is not None, "a family with a tower reads its config"
        self.vision = VisionTower(Factory(config, dtype, rngs, scheme), config.vision)

    def encode(self, patches: PatchInput) -> Float32[Array, "tokens width"]:
        """The embeddings of images; tokens of padding are not used."""
        return self.vision(patches)
