"""Gated delta net: input matmuls, delta rule, gated norm, output matmul.

In: activations and a StepContext. Out: an addition to the residual stream. Must not know where
states are stored, nor other layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import DeltaConfig
from jengine.layers.delta_rule import DeltaRuleLayer
from jengine.layers.initializer import Initializer
from jengine.layers.recurrent import RecurrentInputs
from jengine.models.context import StepContext
from jengine.models.linear import Factory, Linear, Norm
from jengine.models.parameter import parameter
from jengine.models.short_conv import Convolution

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32


class GatedDelta(nnx.Module):
    """One matmul gives, per key head, q, k, the values of the value heads that share it, and their
    gates; another the decays and betas."""

    def __init__(self, factory: Factory, config: DeltaConfig, layer: int):
        self.layer = layer
        self.config = config
        hidden, heads, share = factory.config.hidden_size, config.key_heads, config.share
        axes = ("embed", "heads", None)
        size = config.convolved + share * config.value_dim
        self.qkv_gate = Linear(factory, (hidden,), (heads, size), axes, inner=True)
        self.beta_dt = Linear(factory, (hidden,), (heads, 2, share), (*axes, None))
        channels = heads, config.convolved
        self.conv = Convolution(factory, config.width, channels, ("heads", None), bias=False)
        self.rate_logs = self._of_heads(factory, 0.0)
        self.dt_bias = self._of_heads(factory, 1.0)
        dim, init = config.value_dim, Initializer(mean=1.0)
        self.norm_weight = parameter(factory.rngs, (dim,), (None,), factory.dtype, init)
        self.eps = factory.config.norm_eps
        inputs, axes = (heads, share, dim), ("heads", None, None)
        self.out = Linear(factory, inputs, (hidden,), (*axes, "embed"), x_axes=axes)

    def __call__(
        self,
        x: Float[Array, "*tokens hidden"],
        context: StepContext,
        *,
        norm: Norm | None = None,
        residual: Float[Array, "*tokens hidden"] | None = None,
    ) -> Float32[Array, "*tokens hidden"]:
        config, live = self.config, context.live
        made = self.qkv_gate(x, norm=norm, live=live)
        qkv, gate = jnp.split(made, [config.convolved], axis=-1)
        beta_dt = self.beta_dt(x, norm=norm, live=live)
        tokens = {"qkv": qkv, "beta": beta_dt[..., 0, :], "dt": beta_dt[..., 1, :]}
        rule = DeltaRuleLayer(
            self.conv.arrays()[0], self.rate_logs[...], self.dt_bias[...], config.key_dim
        )
        inputs = RecurrentInputs(rule, tokens, config.cache.states)
        with jax.named_scope("recur"):
            mixed = context.mix(self.layer, inputs)
        mixed = self._normalized(mixed) * jax.nn.silu(gate.astype(jnp.float32)).reshape(mixed.shape)
        return self.out(mixed.reshape(*mixed.shape[:-3], -1), residual=residual, live=live)

    def _of_heads(self, factory: Factory, mean: float) -> nnx.Param:
        shape = self.config.key_heads, self.config.share
        init = Initializer(mean=mean)
        return parameter(factory.rngs, shape, ("heads", None), factory.dtype, init)

    def _normalized(self, mixed: Array) -> Array:
        """RMS norm per value head."""
        square = jnp.mean(jnp.square(mixed), axis=-1, keepdims=True)
        weight = jnp.broadcast_to(self.norm_weight[...].astype(jnp.float32), mixed.shape)
        return mixed * jax.lax.rsqrt(square + self.eps) * weight
