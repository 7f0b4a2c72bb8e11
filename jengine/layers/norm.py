"""RMS and layer norms in float32, over as many trailing axes as the weight has."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
from jax import Array, lax

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32


class RowNorm(NamedTuple):
    """Parameters of a norm, so that a backend can fuse it with the matmul that follows."""

    weight: Array
    bias: Array | None  # set: a layer norm, which also subtracts the mean
    eps: float
    offset: float = 0.0  # added to the weight

    def __call__(self, x: Float[Array, "*shape"]) -> Float32[Array, "*shape"]:
        weight = self.weight
        if self.offset:
            weight = weight.astype("float32") + self.offset
        if self.bias is None:
            return rms_norm(x, weight, self.eps)
        return layer_norm(x, weight, self.bias, self.eps)


@runtime_checkable
class DescribedNorm(Protocol):
    """A norm module whose parameters can be read, to fuse it with a matmul."""

    def described(self) -> RowNorm | None:
        """The norm's parameters; None for the identity."""
        ...


def rms_norm(
    x: Float[Array, "*shape"], weight: Float[Array, "..."], eps: float
) -> Float32[Array, "*shape"]:
    """x / rms(x) * weight."""
    x = x.astype(jnp.float32)
    scale = lax.rsqrt(jnp.mean(jnp.square(x), axis=_last_axes(weight), keepdims=True) + eps)
    return x * scale * jnp.broadcast_to(weight.astype(jnp.float32), x.shape)


def layer_norm(
    x: Float[Array, "*shape"],
    weight: Float[Array, "*features"],
    bias: Float[Array, "*features"],
    eps: float,
) -> Float32[Array, "*shape"]:
    """(x - mean(x)) / std(x) * weight + bias."""
    x = x.astype(jnp.float32)
    centred = x - jnp.mean(x, axis=_last_axes(weight), keepdims=True)
    normed = rms_norm(centred, weight, eps)
    return normed + jnp.broadcast_to(bias.astype(jnp.float32), x.shape)


def head_layer_norm(
    x: Float[Array, "*heads dim"], weight: Float[Array, "*own_heads dim"], eps: float
) -> Float32[Array, "*heads dim"]:
    """Layer norm per head, with a weight per head and no bias."""
    x = x.astype(jnp.float32)
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    normed = centred * lax.rsqrt(variance + eps)
    return normed * jnp.broadcast_to(weight.astype(jnp.float32), x.shape)


def _last_axes(weight: Array) -> tuple[int, ...]:
    return tuple(range(-weight.ndim, 0))
