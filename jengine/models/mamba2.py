"""Mamba-2 layer: input matmuls, state space recurrence, gated norm, output matmul.

In: activations and a StepContext. Out: an addition to the residual stream. Must not know where
states are stored, nor other layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import Mamba2Config
from jengine.layers.initializer import Initializer
from jengine.layers.mamba2 import StateSpaceRule
from jengine.layers.recurrent import RecurrentInputs
from jengine.models.context import StepContext
from jengine.models.linear import Factory, Linear, Norm
from jengine.models.parameter import parameter
from jengine.models.short_conv import Convolution

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32

HEAD_AXES = ("heads", None)


class Mamba2(nnx.Module):
    """The input projection is split into gates and values by head, shared keys per group, and time
    steps, so that heads can be sharded."""

    def __init__(self, factory: Factory, config: Mamba2Config, layer: int):
        self.layer = layer
        self.config = config
        hidden, bias = factory.config.hidden_size, config.bias
        heads, dim = config.num_heads, config.head_dim
        keys = 2, config.groups, config.state_size
        self.gate_x = Linear(
            factory, (hidden,), (heads, 2, dim), ("embed", "heads", None, None), bias=bias,
            inner=True,
        )  # fmt: skip
        self.keys = Linear(factory, (hidden,), keys, ("embed", None, None, None), bias=bias)
        self.dt = Linear(factory, (hidden,), (heads,), ("embed", "heads"), bias=bias)
        width, has_bias = config.width, config.conv_bias
        self.conv_x = Convolution(factory, width, (heads, dim), HEAD_AXES, bias=has_bias)
        self.conv_keys = Convolution(factory, width, keys, (None,) * 3, bias=has_bias)
        self.rate_logs = of_heads(factory, heads, 0.0)
        self.dt_bias = of_heads(factory, heads, 1.0)
        self.skip = of_heads(factory, heads, 1.0)
        if config.gate != "alone":
            self.norm_weight = parameter(
                factory.rngs, (heads, dim), HEAD_AXES, factory.dtype, Initializer(mean=1.0)
            )
        self.eps = factory.config.norm_eps if config.norm_eps is None else config.norm_eps
        axes = (*HEAD_AXES, "embed")
        self.out = Linear(factory, (heads, dim), (hidden,), axes, bias=bias, x_axes=HEAD_AXES)

    def __call__(
        self,
        x: Float[Array, "*tokens hidden"],
        context: StepContext,
        *,
        norm: Norm | None = None,
        residual: Float[Array, "*tokens hidden"] | None = None,
    ) -> Float32[Array, "*tokens hidden"]:
        config, live = self.config, context.live
        scales = config.scales
        gate_x = _scaled(self.gate_x(x, norm=norm, live=live), scales[:2], -2)
        tokens = {
            "x": gate_x[..., 1, :],
            "keys": _scaled(self.keys(x, norm=norm, live=live), scales[2:4], -3),
            "dt": _scaled(self.dt(x, norm=norm, live=live), scales[4:], 0),
        }
        inputs = RecurrentInputs(self._rule(), tokens, config.cache.states)
        with jax.named_scope("recur"):
            mixed = context.mix(self.layer, inputs)
        gated = self._gated(mixed, gate_x[..., 0, :])
        return self.out(gated, residual=residual, live=live)

    def _rule(self) -> StateSpaceRule:
        (x, x_bias), (keys, keys_bias) = self.conv_x.arrays(), self.conv_keys.arrays()
        return StateSpaceRule(
            (x, keys), (x_bias, keys_bias), self.rate_logs[...], self.dt_bias[...], self.skip[...],
            self.config.time_limits,
        )  # fmt: skip

    def _gated(self, mixed: Array, gate: Array) -> Array:
        """Multiply by the gate, with the norm before or after it as configured: [..., heads *
        dim]."""
        gate = jax.nn.silu(gate.astype(jnp.float32))
        if self.config.gate == "before_norm":
            return self._normalized(mixed * gate)
        if self.config.gate == "after_norm":
            mixed = self._normalized(mixed)
        return mixed.reshape(*gate.shape[:-2], -1) * gate.reshape(*gate.shape[:-2], -1)

    def _normalized(self, mixed: Array) -> Array:
        """RMS norm per group of heads: [..., heads * dim]."""
        tokens = mixed.shape[:-2]
        grouped = mixed.reshape(*tokens, self.config.groups, -1)
        square = jnp.mean(jnp.square(grouped), axis=-1, keepdims=True)
        grouped = grouped * jax.lax.rsqrt(square + self.eps)
        weight = self.norm_weight[...].astype(jnp.float32).reshape(-1)
        flat = grouped.reshape(*tokens, -1)
        return flat * jnp.broadcast_to(weight, flat.shape)


def _scaled(x: Array, scales: tuple[float, ...], axis: int) -> Array:
    """Multiply x by one factor, or by a factor per index of an axis."""
    if all(scale == 1.0 for scale in scales):
        return x
    if len(scales) == 1:
        return x * scales[0]
    shape = [1] * x.ndim
    shape[axis] = len(scales)
    factors = jnp.asarray(scales, jnp.float32).reshape(shape)
    return x.astype(jnp.float32) * jnp.broadcast_to(factors, x.shape)


def of_heads(factory: Factory, heads: int, mean: float) -> nnx.Param:
    """A parameter with one number per head."""
    init = Initializer(mean=mean)
    return parameter(factory.rngs, (heads,), ("heads",), factory.dtype, init)
