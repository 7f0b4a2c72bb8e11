"""Attention and a recurrence side by side, as one mixer.

In: activations and a StepContext. Out: an addition to the residual stream. Must not know where
keys, values and states are stored, nor other layers.

Such a layer is in several cache groups, with blocks and a state (Falcon-H1). `LayerConfig.mixers`
lists its one or two mixers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flax import nnx
from jax import Array

from jengine.config import AttentionConfig, SideBySideConfig
from jengine.models.attention import Attention
from jengine.models.context import StepContext
from jengine.models.linear import Factory, Norm
from jengine.models.mamba2 import Mamba2
from jengine.models.norms import LayerNorm, RmsNorm, ScaledNorm

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32


class SideBySide(nnx.Module):
    """Both mixers read the same input and their outputs are added. Input multipliers are folded
    into the norm, the keys' multiplier into the score scale."""

    def __init__(self, factory: Factory, config: SideBySideConfig, layer: int):
        self.config = config
        self.attention = Attention(factory, _with_scaled_keys(config), layer)
        self.recurrent = Mamba2(factory, config.recurrent, layer)

    def __call__(
        self,
        x: Float[Array, "*tokens hidden"],
        context: StepContext,
        *,
        norm: Norm | None = None,
        residual: Float[Array, "*tokens hidden"] | None = None,
    ) -> Float32[Array, "*tokens hidden"]:
        config = self.config
        attended = self.attention(x, context, norm=_scaled(norm, config.attention_input))
        recurred = self.recurrent(x, context, norm=_scaled(norm, config.recurrent_input))
        made = attended * config.attention_output + recurred * config.recurrent_output
        return made if residual is None else residual + made


def _with_scaled_keys(config: SideBySideConfig) -> AttentionConfig:
    """Fold the key multiplier into the score scale, which is exact as no norm follows it and
    rotation is linear."""
    attention = config.attention
    scale = attention.head_dim**-0.5 if attention.scale is None else attention.scale
    return replace(attention, scale=scale * config.attention_keys)


def _scaled(norm: Norm | None, scale: float) -> Norm | None:
    """Multiply a norm's output by a constant."""
    if scale == 1.0:
        return norm
    if isinstance(norm, RmsNorm | LayerNorm):
        return ScaledNorm(norm, scale)
    return lambda x: (x if norm is None else norm(x)) * scale
