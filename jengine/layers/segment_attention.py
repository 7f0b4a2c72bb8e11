"""Bidirectional attention within segments of a packed batch (encoders), without a KV cache.

In: q, k, v of packed sequences and the segment id of each token. Out: attention outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array, lax

from jengine.layers.distance_bias import between

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int

QUERIES_AT_ONCE = 512  # bounds the memory of scores


def segment_attention(
    q: Float[Array, "tokens heads dim"],
    k: Float[Array, "tokens heads dim"],
    v: Float[Array, "tokens heads dim"],
    segments: Int[Array, " tokens"],
    scale: float | None = None,
    biases: Float32[Array, "heads distances"] | None = None,
) -> Float[Array, "tokens heads dim"]:
    """Softmax attention of each token over all tokens with its segment id; segments are contiguous.

    `biases` are bidirectional relative position biases by distance.
    """
    tokens, heads, dim = q.shape
    scale = dim**-0.5 if scale is None else scale

    places = jnp.arange(tokens)

    def some(part: tuple[Array, Array, Array]) -> Array:
        queries, own, at = part
        scores = jnp.einsum("thd,shd->hts", queries, k) * scale
        scores = scores if biases is None else scores + between(biases, at, places)
        seen = jnp.broadcast_to(own[:, None] == segments[None, :], scores.shape)
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
        return jnp.einsum("hts,shd->thd", weights, v)

    if tokens <= QUERIES_AT_ONCE or tokens % QUERIES_AT_ONCE:
        return some((q, segments, places))
    of_tiles = (one.reshape(-1, QUERIES_AT_ONCE) for one in (segments, places))
    tiles = (q.reshape(-1, QUERIES_AT_ONCE, heads, dim), *of_tiles)
    return lax.map(some, tiles).reshape(tokens, heads, dim)
