"""Head of a pooling model: float32 matmuls after pooling, as configured.

In: pooled hidden states, or those of single tokens. Out: embeddings or class scores. Softmax, norm
and truncation of dimensions happen on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import HeadLayer, ModelConfig, PoolingConfig
from jengine.models.linear import Factory, Linear
from jengine.models.norms import LayerNorm

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu": partial(jax.nn.gelu, approximate=False),
}


class PoolerLayer(nnx.Module):
    """One matmul with an optional activation and norm."""

    def __init__(self, factory: Factory, inputs: int, layer: HeadLayer):
        self.activation = layer.activation
        self.linear = Linear(factory, (inputs,), (layer.outputs,), (None, None), bias=layer.bias)
        self.has_norm = layer.norm is not None
        if self.has_norm:
            kind = "layer" if layer.norm_bias else "layer_no_bias"
            own = replace(factory, config=replace(factory.config, norm=kind))
            self.norm = LayerNorm(own, (layer.outputs,), (None,))

    def __call__(self, x: Float[Array, "rows inputs"]) -> Float32[Array, "rows outputs"]:
        x = self.linear(x)
        if self.activation is not None:
            x = ACTIVATIONS[self.activation](x)
        return self.norm(x) if self.has_norm else x


class Pooler(nnx.Module):
    """The head's layers in order; may be empty."""

    def __init__(self, config: ModelConfig, pooling: PoolingConfig, rngs: nnx.Rngs | None):
        factory = Factory(config, jnp.float32, rngs)
        widths = (config.hidden_size, *(layer.outputs for layer in pooling.head))
        self.layers = nnx.List([
            PoolerLayer(factory, width, layer)
            for width, layer in zip(widths, pooling.head, strict=False)
        ])  # fmt: skip
        self.first_of_tokens, self.end_of_tokens = (
            (0, len(pooling.head)) if pooling.head_of_tokens is None else pooling.head_of_tokens
        )

    def __call__(self, x: Float[Array, "rows hidden"]) -> Float32[Array, "rows outputs"]:
        """Apply the head to pooled hidden states."""
        x = x.astype(jnp.float32)
        for layer in self.layers:
            x = layer(x)
        return x

    def of_tokens(self, x: Float[Array, "tokens hidden"]) -> Float32[Array, "tokens outputs"]:
        """Apply the head's per-token part to single hidden states."""
        x = x.astype(jnp.float32)
        for layer in list(self.layers)[self.first_of_tokens : self.end_of_tokens]:
            x = layer(x)
        return x
