"""Gated short convolution of LFM2, in place of attention in most layers.

In: activations and a StepContext. Out: an addition to the residual stream. Must not know where
states are stored, nor other layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
from flax import nnx
from jax import Array

from jengine.config import ShortConvConfig
from jengine.layers.recurrent import RecurrentInputs, StateView, short_convolution
from jengine.models.context import StepContext
from jengine.models.linear import Factory, Linear, Norm
from jengine.models.parameter import normal, parameter, zeros

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32


@dataclass(frozen=True)
class ConvolutionRule:
    """A convolution as a recurrence whose state is its last inputs."""

    kernel: Array  # [width, channels]
    bias: Array | None

    def __call__(
        self, tokens: Array, states: tuple[Array, ...], layer: int, view: StateView
    ) -> tuple[Array, tuple[Array, ...]]:
        [state] = states
        out, state = short_convolution(tokens, self.kernel, self.bias, state, layer, view)
        return out, (state,)


class Convolution(nnx.Module):
    """Parameters of a depthwise convolution."""

    def __init__(
        self,
        factory: Factory,
        width: int,
        channels: tuple[int, ...],
        axes: tuple[str | None, ...],
        *,
        bias: bool,
    ):
        init = normal(factory.config.initializer_range)
        shape = (width, *channels)
        self.weight = parameter(factory.rngs, shape, (None, *axes), factory.dtype, init)
        self.has_bias = bias
        if bias:
            self.bias = zeros(factory.rngs, channels, axes, factory.dtype)

    def arrays(self) -> tuple[Array, Array | None]:
        return self.weight[...], self.bias[...] if self.has_bias else None


class ShortConv(nnx.Module):
    """out(after * convolution(before * x)), with `before`, `after` and x from one matmul."""

    def __init__(self, factory: Factory, config: ShortConvConfig, layer: int):
        self.layer = layer
        self.config = config
        hidden, channels, bias = factory.config.hidden_size, config.channels, config.bias
        axes = ("embed", None, "mlp")
        self.gates = Linear(factory, (hidden,), (3, channels), axes, bias=bias, inner=True)
        self.conv = Convolution(factory, config.width, (channels,), ("mlp",), bias=bias)
        self.out = Linear(factory, (channels,), (hidden,), ("mlp", "embed"), bias=bias)

    def __call__(
        self,
        x: Float[Array, "*tokens hidden"],
        context: StepContext,
        *,
        norm: Norm | None = None,
        residual: Float[Array, "*tokens hidden"] | None = None,
    ) -> Float32[Array, "*tokens hidden"]:
        made = self.gates(x, norm=norm, live=context.live)
        before, after, inner = made[..., 0, :], made[..., 1, :], made[..., 2, :]
        rule = ConvolutionRule(*self.conv.arrays())
        inputs = RecurrentInputs(rule, before * inner, self.config.cache.states)
        with jax.named_scope("convolve"):
            mixed = context.mix(self.layer, inputs)
        return self.out(after * mixed, residual=residual, live=context.live)
