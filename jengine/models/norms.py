"""Norm modules; the model's config picks kind and places."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
from flax import nnx
from jax import Array

from jengine.config import PLACES, AttentionConfig
from jengine.layers.initializer import Initializer
from jengine.layers.norm import RowNorm
from jengine.models.linear import Factory
from jengine.models.parameter import Axes, parameter, zeros

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float


class RmsNorm(nnx.Module):
    """x / rms(x) * weight."""

    def __init__(
        self, factory: Factory, shape: tuple[int, ...], axes: Axes, eps: float | None = None
    ):
        self.scheme = factory.scheme
        self.eps = factory.config.norm_eps if eps is None else eps
        # Some families store weight - 1.
        self.offset = norm_offset(factory)
        self.weight = parameter(
            factory.rngs, shape, axes, factory.dtype, Initializer(mean=1.0 - self.offset)
        )

    def __call__(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return self.scheme.normalize(self.described(), x)

    def described(self) -> RowNorm:
        return RowNorm(self.weight[...], None, self.eps, self.offset)


class LayerNorm(nnx.Module):
    """(x - mean) / std * weight + bias."""

    def __init__(self, factory: Factory, shape: tuple[int, ...], axes: Axes):
        self.scheme = factory.scheme
        self.eps = factory.config.norm_eps
        self.offset = norm_offset(factory)
        self.weight = parameter(
            factory.rngs, shape, axes, factory.dtype, Initializer(mean=1.0 - self.offset)
        )
        self.has_bias = factory.config.norm != "layer_no_bias"
        if self.has_bias:
            self.bias = zeros(factory.rngs, shape, axes, factory.dtype)

    def __call__(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return self.scheme.normalize(self.described(), x)

    def described(self) -> RowNorm:
        weight = self.weight[...]
        bias = self.bias[...] if self.has_bias else jnp.zeros_like(weight)
        return RowNorm(weight, bias, self.eps, self.offset)


class BareNorm(nnx.Module):
    """A norm without parameters."""

    def __init__(self, factory: Factory, shape: tuple[int, ...], axes: Axes):
        self.scheme, self.eps, self.shape = factory.scheme, factory.config.norm_eps, shape
        self.is_centred = factory.config.norm == "layer_bare"

    def __call__(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return self.scheme.normalize(self.described(), x)

    def described(self) -> RowNorm:
        bias = jnp.zeros(self.shape) if self.is_centred else None
        return RowNorm(jnp.ones(self.shape), bias, self.eps)


class ScaledNorm:
    """A norm times a constant, described as one norm for fusion. Has no parameters of its own."""

    def __init__(self, norm: RmsNorm | LayerNorm, scale: float):
        self.norm, self.scale = norm, scale

    def __call__(self, x: Array) -> Array:
        return self.norm.scheme.normalize(self.described(), x)

    def described(self) -> RowNorm:
        found = self.norm.described()
        weight = (found.weight.astype(jnp.float32) + found.offset) * self.scale
        bias = None if found.bias is None else found.bias.astype(jnp.float32) * self.scale
        return RowNorm(weight, bias, found.eps)


class NoNorm(nnx.Module):
    """The identity, where a family has no norm."""

    def __call__(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return x

    def described(self) -> None:
        """Return None: nothing to fuse."""


Norm = RmsNorm | LayerNorm | BareNorm | NoNorm


def norm_offset(factory: Factory) -> float:
    """1 if weights are stored minus one, else 0."""
    return 1.0 if factory.config.norm.endswith("one_plus") else 0.0


def make_norm(
    factory: Factory, shape: tuple[int, ...], axes: Axes
) -> RmsNorm | LayerNorm | BareNorm:
    """A norm of the config's kind over the trailing axes `shape`."""
    if factory.config.norm.endswith("bare"):
        return BareNorm(factory, shape, axes)
    return (RmsNorm if factory.config.norm.startswith("rms") else LayerNorm)(factory, shape, axes)


def norms_around(factory: Factory, axes: Axes = ("embed",)) -> tuple[Norm, Norm]:
    """Norms before and after a block; NoNorm where the config has none."""
    config = factory.config
    before, after = (
        make_norm(factory, (config.hidden_size,), axes)
        if place in PLACES[config.norm_places]
        else NoNorm()
        for place in ("before", "after")
    )
    return before, after


def head_norms(factory: Factory, config: AttentionConfig) -> tuple[RmsNorm, RmsNorm] | None:
    """Norms of queries [..., kv, group, dim] and keys [..., kv, dim], or None."""
    if config.qk_norm in (None, "unit"):
        return None
    kv, dim = config.num_kv_heads, config.head_dim
    if config.qk_norm in ("head", "behind_rotation"):
        q = k = (dim,), ("head_dim",)
    else:
        q = (kv, config.group, dim), ("kv_heads", None, None)
        k = (kv, dim), ("kv_heads", None)
    return RmsNorm(factory, *q), RmsNorm(factory, *k)
