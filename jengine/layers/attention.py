"""Plain causal attention without a cache: what training and scoring of whole sequences use.

Also the type of the attention function that a model is given: the model computes q, k and v and
does not know where keys and values are kept.
"""

from __future__ import annotations

from typing import Any, Protocol, TypedDict, Unpack

import jax
import jax.numpy as jnp
from jax import Array

from jengine.layers.soft_cap import soft_cap


class ScoreOptions(TypedDict, total=False):
    """How scores come from q and k, where a model departs from q @ k * head_dim ** -0.5."""

    scale: float
    soft_cap: float


class AttentionFunction(Protocol):
    """Stores k and v of `layer` and attends q to what the cache then holds."""

    def __call__(
        self, cache: Any, layer: int, q: Array, k: Array, v: Array, **options: Unpack[ScoreOptions]
    ) -> tuple[Array, Any]: ...


def dense_causal(windows: tuple[int | None, ...]) -> AttentionFunction:
    """Attention over whole sequences [B, T, heads, dim]; `windows` holds one entry a layer."""

    def attend(
        cache: Any, layer: int, q: Array, k: Array, v: Array, **options: Unpack[ScoreOptions]
    ) -> tuple[Array, Any]:
        batch, length, heads, dim = q.shape
        grouped = q.reshape(batch, length, k.shape[2], heads // k.shape[2], dim)
        scale = options.get("scale", dim**-0.5)
        scores = jnp.einsum("btkgd,bskd->bkgts", grouped, k) * scale  # [B, KV, G, T, S]
        scores = soft_cap(scores, options.get("soft_cap"))
        mask = jnp.broadcast_to(causal_mask(length, windows[layer]), scores.shape)
        weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)
        mixed = jnp.einsum("bkgts,bskd->btkgd", weights, v)
        return mixed.reshape(batch, length, heads, dim), cache

    return attend


def causal_mask(length: int, window: int | None) -> Array:
    """True where query t may see key s, [T, T]."""
    query = jnp.arange(length)[:, None]
    key = jnp.arange(length)[None, :]
    seen = key <= query
    return seen if window is None else seen & (key > query - window)
