"""Transform before the output head of BERT-style decoders: norm(act(dense(x)))."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flax import nnx
from jax import Array

from jengine.config import HeadTransformConfig
from jengine.models.linear import Factory, Linear
from jengine.models.norms import make_norm

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int


class HeadTransform(nnx.Module):
    """One matmul with an activation, and a norm."""

    def __init__(self, factory: Factory, config: HeadTransformConfig):
        hidden = factory.config.hidden_size
        self.activation = config.activation
        self.dense = Linear(factory, (hidden,), (hidden,), ("embed", None), bias=config.bias)
        self.norm = make_norm(factory, (hidden,), ("embed",))

    def __call__(
        self, hidden: Float[Array, "*tokens hidden"], live: Int[Array, "*tokens"] | None
    ) -> Float32[Array, "*tokens hidden"]:
        return self.norm(self.dense(hidden, activation=self.activation, live=live))
