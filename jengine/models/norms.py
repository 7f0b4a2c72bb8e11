"""Norms as modules: which kind, and whether there is one at all, is chosen when they are made."""

from __future__ import annotations

from typing import Any

from flax import nnx
from jax import Array

from jengine.config import AttentionConfig, ModelConfig
from jengine.layers.norm import layer_norm, rms_norm
from jengine.models.parameter import Axes, Initializer, parameter, zeros


class RmsNorm(nnx.Module):
    """Divides by the root of the mean square, times a weight."""

    def __init__(
        self,
        config: ModelConfig,
        shape: tuple[int, ...],
        axes: Axes,
        dtype: Any,
        rngs: nnx.Rngs | None,
    ):
        self.eps = config.norm_eps
        # Some families store the weight as its distance from one.
        self.offset = 1.0 if config.norm == "rms_one_plus" else 0.0
        self.weight = parameter(rngs, shape, axes, dtype, Initializer(mean=1.0 - self.offset))

    def __call__(self, x: Array) -> Array:
        weight = self.weight[...]
        if self.offset:
            weight = weight.astype("float32") + self.offset
        return rms_norm(x, weight, self.eps)


class LayerNorm(nnx.Module):
    """Subtracts the mean and divides by the deviation, times a weight, plus a bias."""

    def __init__(
        self,
        config: ModelConfig,
        shape: tuple[int, ...],
        axes: Axes,
        dtype: Any,
        rngs: nnx.Rngs | None,
    ):
        self.eps = config.norm_eps
        self.weight = parameter(rngs, shape, axes, dtype, Initializer(mean=1.0))
        self.bias = zeros(rngs, shape, axes, dtype)

    def __call__(self, x: Array) -> Array:
        return layer_norm(x, self.weight[...], self.bias[...], self.eps)


class NoNorm(nnx.Module):
    """Stands where a family has no norm."""

    def __call__(self, x: Array) -> Array:
        return x


Norm = RmsNorm | LayerNorm | NoNorm


def make_norm(
    config: ModelConfig, shape: tuple[int, ...], axes: Axes, dtype: Any, rngs: nnx.Rngs | None
) -> RmsNorm | LayerNorm:
    """A norm of the config's kind over the last axes, as many as `shape` has."""
    kind = LayerNorm if config.norm == "layer" else RmsNorm
    return kind(config, shape, axes, dtype, rngs)


def norms_around(config: ModelConfig, dtype: Any, rngs: nnx.Rngs | None) -> tuple[Norm, Norm]:
    """The norms before and after attention or MLP, as the config places them."""
    before, after = (
        make_norm(config, (config.hidden_size,), ("embed",), dtype, rngs)
        if config.norm_places in (place, "around")
        else NoNorm()
        for place in ("before", "after")
    )
    return before, after


def head_norms(
    config: ModelConfig, attention: AttentionConfig, dtype: Any, rngs: nnx.Rngs | None
) -> tuple[RmsNorm, RmsNorm] | None:
    """The norms of queries [..., kv, group, dim] and of keys [..., kv, dim]."""
    if attention.qk_norm is None:
        return None
    kv, dim = attention.num_kv_heads, attention.head_dim
    if attention.qk_norm == "head":
        q = k = (dim,), ("head_dim",)
    else:
        q = (kv, attention.group, dim), ("kv_heads", None, None)
        k = (kv, dim), ("kv_heads", None)
    return RmsNorm(config, *q, dtype, rngs), RmsNorm(config, *k, dtype, rngs)
