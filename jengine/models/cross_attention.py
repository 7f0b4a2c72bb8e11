"""Cross attention: keys and values are computed once per request, from the encoder's output.

In: activations of the decoder, or of the encoder. Out: an addition to the residual stream, or keys
and values to store. Must not know where these are stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import AttentionConfig
from jengine.models.context import StepContext
from jengine.models.linear import Factory, Linear, Norm

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32


class CrossAttention(nnx.Module):
    def __init__(self, factory: Factory, config: AttentionConfig, index: int):
        self.index = index  # among the layers with cross attention
        self.scale = config.head_dim**-0.5 if config.scale is None else config.scale
        hidden, heads, dim = factory.config.hidden_size, config.num_heads, config.head_dim
        bias, axes = config.qkv_bias, ("embed", "heads", None)
        self.query = Linear(factory, (hidden,), (heads, dim), axes, bias=bias)
        kv, axes = (2, config.num_kv_heads, dim), ("embed", None, "heads", None)
        self.kv = Linear(factory, (hidden,), kv, axes, bias=bias)
        axes = ("heads", None, "embed")
        self.out = Linear(factory, (heads, dim), (hidden,), axes, bias=config.output_bias)

    def __call__(
        self,
        x: Float[Array, "*tokens hidden"],
        context: StepContext,
        *,
        norm: Norm | None = None,
        residual: Float[Array, "*tokens hidden"] | None = None,
    ) -> Float32[Array, "*tokens hidden"]:
        assert context.cross is not None, "a model with cross attention runs after its encoder"
        query = self.query(x, norm=norm, live=context.live)
        with jax.named_scope("attend"):
            mixed = context.cross(self.index, query, self.scale)
        return self.out(mixed.reshape(*mixed.shape[:-2], -1), residual=residual, live=context.live)

    def keys_and_values(
        self, encoded: Float[Array, "positions hidden"]
    ) -> Float32[Array, "positions width"]:
        """Keys and values of this layer for an encoder's output."""
        return self.kv(encoded).reshape(len(encoded), -1)


def keys_and_values_of(
    layers: Iterable[Any], encoded: Float[Array, "positions hidden"]
) -> Float32[Array, "positions width"]:
    """Keys and values of all decoder layers for an encoder's output, concatenated."""
    with jax.named_scope("keys_and_values"):
        found = [layer.cross.keys_and_values(encoded) for layer in layers if layer.has_cross]
        return jnp.concatenate(found, axis=-1)
