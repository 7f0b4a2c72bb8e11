"""Mamba layer: input matmul, selective scan, gate, output matmul.

In: activations and a StepContext. Out: an addition to the residual stream. Must not know where
states are stored, nor other layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import MambaConfig
from jengine.layers.initializer import Initializer
from jengine.layers.mamba import SelectiveRule
from jengine.layers.recurrent import RecurrentInputs
from jengine.models.context import StepContext
from jengine.models.linear import Factory, Linear, Norm
from jengine.models.parameter import Axes, normal, parameter
from jengine.models.short_conv import Convolution

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32

OF_CHANNELS = ("mlp",)


class Mamba(nnx.Module):
    """dt, B and C are projected from the convolved values, inside the recurrence."""

    def __init__(self, factory: Factory, config: MambaConfig, layer: int):
        self.layer, self.config = layer, config
        hidden, channels, bias = factory.config.hidden_size, config.channels, config.bias

        def array(shape: tuple[int, ...], axes: Axes, init: Initializer) -> nnx.Param:
            return parameter(factory.rngs, shape, axes, factory.dtype, init)

        random, one = normal(factory.config.initializer_range), Initializer(mean=1.0)
        self.x_gate = Linear(
            factory, (hidden,), (2, channels), ("embed", None, "mlp"), bias=bias, inner=True
        )
        self.conv = Convolution(
            factory, config.width, (channels,), OF_CHANNELS, bias=config.conv_bias
        )
        selected = config.rank + 2 * config.state_size
        self.select = array((channels, selected), ("mlp", None), random)
        self.dt_weight = array((config.rank, channels), (None, "mlp"), random)
        self.dt_bias = array((channels,), OF_CHANNELS, one)
        self.rate_logs = array((channels, config.state_size), ("mlp", None), Initializer(mean=0.0))
        self.skip = array((channels,), OF_CHANNELS, one)
        if config.norms == "weighted":
            self.dt_norm = array((config.rank,), (None,), one)
            self.b_norm = array((config.state_size,), (None,), one)
            self.c_norm = array((config.state_size,), (None,), one)
        self.out = Linear(factory, (channels,), (hidden,), ("mlp", "embed"), bias=bias)

    def __call__(
        self,
        x: Float[Array, "*tokens hidden"],
        context: StepContext,
        *,
        norm: Norm | None = None,
        residual: Float[Array, "*tokens hidden"] | None = None,
    ) -> Float32[Array, "*tokens hidden"]:
        both = self.x_gate(x, norm=norm, live=context.live)
        inputs = RecurrentInputs(self._rule(), both[..., 0, :], self.config.cache.states)
        with jax.named_scope("recur"):
            mixed = context.mix(self.layer, inputs)
        gate = jax.nn.silu(both[..., 1, :].astype(jnp.float32))
        return self.out(mixed * gate, residual=residual, live=context.live)

    def _rule(self) -> SelectiveRule:
        return SelectiveRule(
            *self.conv.arrays(), self.select[...], self.dt_weight[...], self.dt_bias[...],
            self.rate_logs[...], self.skip[...], self._norms(), self.config.norm_eps,
        )  # fmt: skip

    def _norms(self) -> tuple[Array, Array, Array] | None:
        if self.config.norms is None:
            return None
        if self.config.norms == "weighted":
            return self.dt_norm[...], self.b_norm[...], self.c_norm[...]
        ones = jnp.ones((self.config.state_size,))
        return jnp.ones((self.config.rank,)), ones, ones
