"""Vision block of Gemma 4, with QK- and value norms, and norms before and after each block.

In: packed patches. Out: the residual stream after attention and a gated MLP. Inputs and outputs of
each matmul may be clamped, with bounds per matmul, so Q, K and V (and gate and up) are not fused.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import VisionConfig
from jengine.layers.initializer import Initializer
from jengine.layers.mlp import ACTIVATIONS
from jengine.layers.norm import rms_norm
from jengine.layers.rope import rotate
from jengine.layers.segment_attention import segment_attention
from jengine.models.linear import Factory, Linear
from jengine.models.norms import make_norm
from jengine.models.parameter import Axes, parameter

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float32, Int


class ClampedLinear(nnx.Module):
    """A matmul whose inputs and outputs are clamped, if configured."""

    def __init__(
        self,
        factory: Factory,
        vision: VisionConfig,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        axes: Axes,
    ):
        self.linear = Linear(factory, inputs, outputs, axes)
        self.clamps = vision.clamps
        if self.clamps:  # of inputs, and of outputs
            low, high = Initializer(mean=-math.inf), Initializer(mean=math.inf)
            self.low = parameter(factory.rngs, (2,), (None,), factory.dtype, low)
            self.high = parameter(factory.rngs, (2,), (None,), factory.dtype, high)

    def __call__(self, x: Float32[Array, "patches ..."]) -> Float32[Array, "patches ..."]:
        return self._clamped(self.linear(self._clamped(x, 0)), 1)

    def _clamped(self, x: Array, side: int) -> Array:
        if not self.clamps:
            return x
        bounds = (self.low[...][side], self.high[...][side])
        return jnp.clip(x, *(one.astype(jnp.float32) for one in bounds))


class NormedVisionBlock(nnx.Module):
    """Attention within segments and a gated MLP, with norms around both."""

    def __init__(self, factory: Factory, vision: VisionConfig, layer: int):
        hidden, inner = (vision.hidden_size,), (vision.intermediate_size,)
        heads = (vision.num_heads, vision.head_dim)
        self.activation, self.eps = ACTIVATIONS[vision.activation], vision.norm_eps
        norm = [make_norm(factory, hidden, ("embed",)) for _ in range(4)]
        self.before_attention, self.after_attention, self.before_mlp, self.after_mlp = norm
        self.q_norm, self.k_norm = (make_norm(factory, heads[1:], (None,)) for _ in range(2))
        into, out = ("embed", "heads", None), ("heads", None, "embed")
        self.q, self.k, self.v = (
            ClampedLinear(factory, vision, hidden, heads, into) for _ in range(3)
        )
        self.out = ClampedLinear(factory, vision, heads, hidden, out)
        self.gate, self.up = (
            ClampedLinear(factory, vision, hidden, inner, ("embed", "mlp")) for _ in range(2)
        )
        self.down = ClampedLinear(factory, vision, inner, hidden, ("mlp", "embed"))

    def __call__(
        self,
        x: Float32[Array, "patches hidden"],
        segments: Int[Array, "kinds patches"],
        turns: tuple[Array, Array] | None,
    ) -> Float32[Array, "patches hidden"]:
        assert turns is not None, "these towers rotate"
        normed = self.before_attention(x)
        q, k = self.q_norm(self.q(normed)), self.k_norm(self.k(normed))
        v = self.v(normed)
        v = rms_norm(v, jnp.ones(v.shape[-1:]), self.eps)
        q, k = (rotate(by_half(heads), *turns) for heads in (q, k))
        mixed = segment_attention(q, k, v, segments[0], scale=1.0)
        x = x + self.after_attention(self.out(mixed.reshape(len(x), -1)))
        normed = self.before_mlp(x)
        inner = self.activation(self.gate(normed)) * self.up(normed)
        return x + self.after_mlp(self.down(inner))


def by_half(x: Float32[Array, "patches heads dim"]) -> Float32[Array, "patches heads dim"]:
    """Permute lanes for a single rotation: checkpoints rotate a head's first half by column and its
    second by row, each between its own halves. Scores do not depend on the order of lanes."""
    parts = x.reshape(*x.shape[:2], 2, 2, -1)[:, :, ::-1]
    return parts.swapaxes(2, 3).reshape(x.shape)
