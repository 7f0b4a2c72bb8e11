"""Merges a vision tower's patches into embeddings of the language model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import MergerConfig
from jengine.layers.initializer import Initializer
from jengine.layers.mlp import ACTIVATIONS
from jengine.layers.norm import rms_norm
from jengine.models.linear import Factory, Linear
from jengine.models.norms import make_norm
from jengine.models.parameter import parameter, zeros

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float32


class PatchMerger(nnx.Module):
    """Merges each square of patches into one vector, in the configured way."""

    def __init__(self, factory: Factory, config: MergerConfig, hidden: int):
        self.config = config
        merged = hidden * config.patches
        own = replace(factory.config, norm=config.norm, norm_eps=config.norm_eps)
        factory = replace(factory, config=own)
        if config.kind == "scaled_average":
            if config.standardizes:
                self.shift = zeros(factory.rngs, (hidden,), (None,), factory.dtype)
                ones = Initializer(mean=1.0)
                self.scale = parameter(factory.rngs, (hidden,), (None,), factory.dtype, ones)
            self.out = Linear(factory, (hidden,), (config.width,), ("embed", "embed"))
            return
        if config.kind != "none":
            width = merged if config.kind == "norm_merged" else hidden
            self.norm = make_norm(factory, (width,), ("embed",))
        if config.kind == "average":
            self.out = Linear(factory, (hidden,), (config.width,), ("embed", "embed"))
            return
        inner, bias = (config.inner,), config.bias
        self.up = Linear(factory, (merged,), inner, ("embed", "mlp"), bias=bias)
        self.down = Linear(factory, inner, (config.width,), ("mlp", "embed"), bias=bias)

    def __call__(self, x: Float32[Array, "patches hidden"]) -> Float32[Array, "tokens width"]:
        config = self.config
        with jax.named_scope("merge"):
            if config.kind == "scaled_average":
                return self.out(self._scaled_average(x))
            if config.kind == "average":
                squares = x.reshape(-1, config.patches, x.shape[-1])
                return self.out(self.norm(jnp.mean(squares, axis=1)))
            if config.kind == "norm_each":
                x = self.norm(x)
            merged = x.reshape(-1, config.patches * x.shape[-1])
            if config.kind == "norm_merged":
                merged = self.norm(merged)
            return self.down(ACTIVATIONS[config.activation](self.up(merged)))

    def _scaled_average(
        self, x: Float32[Array, "patches hidden"]
    ) -> Float32[Array, "tokens hidden"]:
        """Averages times the root of the width, standardized, and normed without weights."""
        config, hidden = self.config, x.shape[-1]
        mean = jnp.mean(x.reshape(-1, config.patches, hidden), axis=1) * hidden**0.5
        if config.standardizes:
            shift, scale = (one[...][None].astype(jnp.float32) for one in (self.shift, self.scale))
            mean = (mean - shift) * scale
        return rms_norm(mean, jnp.ones((hidden,)), config.norm_eps)
