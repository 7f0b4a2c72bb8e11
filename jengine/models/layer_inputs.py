"""Per-layer inputs (Gemma 4): extra vectors per token and layer, beside the residual stream.

In: tokens and embeddings, once per call; at a layer's end, the residual stream. Out: vectors of
every layer; the layer's output. Must not know attention or caches.

Gemma 4's last layers read another layer's KV cache and compute queries only: their mixer passes
`ReadInputs` with the layer to read (`AttentionConfig.source`), writes nothing, and is in no cache
group.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import LayerInputsConfig
from jengine.layers.initializer import Initializer
from jengine.layers.mlp import ACTIVATIONS
from jengine.models.context import StepContext
from jengine.models.linear import Embedding, Factory, Linear
from jengine.models.norms import make_norm
from jengine.models.parameter import parameter

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int


class LayerInputs(nnx.Module):
    """A table row per token and layer, plus a projection of the token's embedding."""

    def __init__(self, factory: Factory, config: LayerInputsConfig):
        self.shape = (len(factory.config.layers), config.size)
        hidden = factory.config.hidden_size
        self.table = Embedding(
            factory, config.rows, ("vocab", "embed"), width=math.prod(self.shape)
        )
        self.project = Linear(factory, (hidden,), self.shape, ("embed", None, None))
        self.norm = make_norm(factory, (config.size,), (None,))
        self.projection_scale = hidden**-0.5

    def __call__(
        self, tokens: Int[Array, "*tokens"], x: Float[Array, "*tokens hidden"]
    ) -> Float32[Array, "*tokens layers size"]:
        # Rounded to the weights' dtype, as in training.
        scale = jnp.asarray(self.shape[-1] ** 0.5, self.table.dtype).astype(jnp.float32)
        found = (self.table(tokens) * scale).reshape(*tokens.shape, *self.shape)
        made = self.norm(self.project(x) * self.projection_scale)
        return (made + found) * 2.0**-0.5


class LayerEnding(nnx.Module):
    """factor * (x + norm(out(act(gate(x)) * layer input))), or those parts of it that the model
    has."""

    def __init__(self, factory: Factory, layer: int):
        config, hidden = factory.config, factory.config.hidden_size
        self.layer, self.inputs = layer, config.layer_inputs
        if self.inputs is not None:
            size = self.inputs.size
            self.gate = Linear(factory, (hidden,), (size,), ("embed", None))
            self.out = Linear(factory, (size,), (hidden,), (None, "embed"))
            self.norm = make_norm(factory, (hidden,), ("embed",))
        self.has_factor = config.layer_factors
        if self.has_factor:
            self.factor = parameter(
                factory.rngs, (1,), (None,), factory.dtype, Initializer(mean=1.0)
            )

    def __call__(
        self, x: Float[Array, "*tokens hidden"], context: StepContext
    ) -> Float32[Array, "*tokens hidden"]:
        if self.inputs is not None:
            assert context.layer_inputs is not None, "made with the embeddings"
            with jax.named_scope("layer_input"):
                gate = self.gate(x, live=context.live)
                given = context.layer_inputs[..., self.layer, :]
                inner = ACTIVATIONS[self.inputs.activation](gate) * given
                x = x + self.norm(self.out(inner, live=context.live))
        if not self.has_factor:
            return x
        return x * jnp.broadcast_to(self.factor[...].astype(jnp.float32), x.shape)


class NoEnding(nnx.Module):
    """The identity, for layers that end with their feed-forward block."""

    def __call__(self, x: Array, context: StepContext) -> Array:
        return x


def make_ending(factory: Factory, layer: int) -> LayerEnding | NoEnding:
    """Module at the end of a layer."""
    config = factory.config
    is_needed = config.layer_inputs is not None or config.layer_factors
    return LayerEnding(factory, layer) if is_needed else NoEnding()
