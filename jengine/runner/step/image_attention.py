"""Bidirectional attention within images, added to causal attention.

In: q, k, v of a step's tokens, and how many later tokens each attends to. Out: that attention,
merged with causal attention over the cache. A step runs such an image whole, so attention is local:
each block of queries reads the keys of its tokens and of the few right after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jengine.config import AttentionConfig
from jengine.layers.soft_cap import soft_cap as capped

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Int32

FEWEST_QUERIES = 64
# Score of masked keys; finite, so that a token that sees none gives no NaN.
MASKED = -1e30


class Later(NamedTuple):
    """Keys and values of later tokens of the same image."""

    keys: Array  # [tokens, kv_heads, dim] normed and rotated
    values: Array  # [tokens, kv_heads, dim]
    ahead: Array  # i32[tokens] to how many later tokens each attends


def with_later(
    q: Float[Array, "tokens heads dim"],
    earlier: tuple[Array, Array],
    later: Later,
    config: AttentionConfig,
    reach: int,
) -> Float[Array, "tokens heads dim"]:
    """Merge causal attention (output, log-sum-exp) with attention to later tokens."""
    seen = attention_ahead(q, later, reach, scale=config.scale, soft_cap=config.soft_cap)
    return with_ahead(*earlier, seen, later.ahead)


def attention_ahead(
    q: Float[Array, "tokens heads dim"],
    later: Later,
    reach: int,
    *,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> tuple[Float[Array, "tokens heads dim"], Float[Array, "tokens heads"]]:
    """Attention of each token to its next `ahead` tokens, at most `reach`; returns (output,
    log-sum-exp)."""
    k, v, ahead = later
    tokens, kv = k.shape[:2]
    block = min(tokens, max(reach + 1, FEWEST_QUERIES))
    count = -(-tokens // block)
    queries = jnp.pad(q, ((0, count * block - tokens), (0, 0), (0, 0)))
    queries = queries.reshape(count, block, kv, -1, q.shape[-1]).astype(jnp.float32)
    places = jnp.arange(count)[:, None] * block + jnp.arange(block + reach)[None, :]
    k, v = (x.at[places].get(mode="fill", fill_value=0).astype(jnp.float32) for x in (k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = jnp.einsum("nqkgd,nskd->nkgqs", queries, k) * scale
    scores = capped(scores, soft_cap)
    distance = jnp.arange(block + reach)[None, :] - jnp.arange(block)[:, None]
    seen_by = jnp.pad(ahead, (0, count * block - tokens)).reshape(count, block, 1)
    seen = (distance[None] > 0) & (distance[None] <= seen_by)
    scores = jnp.where(jnp.broadcast_to(seen[:, None, None], scores.shape), scores, MASKED)
    total = jax.nn.logsumexp(scores, axis=-1)
    mixed = jnp.einsum("nkgqs,nskd->nqkgd", jnp.exp(scores - total[..., None]), v)
    mixed = mixed.reshape(count * block, *q.shape[1:])[:tokens]
    return mixed, total.transpose(0, 3, 1, 2).reshape(count * block, -1)[:tokens]


def with_ahead(
    mixed: Float[Array, "tokens heads dim"],
    total: Float[Array, "tokens heads"],
    seen: tuple[Array, Array],
    ahead: Int32[Array, " tokens"],
) -> Float[Array, "tokens heads dim"]:
    """Merge two attention outputs by their log-sum-exp."""
    share = jax.nn.sigmoid(seen[1] - total)[..., None]
    both = mixed * (1 - share) + seen[0] * share
    sees = jnp.broadcast_to((ahead > 0)[:, None, None], both.shape)
    return jnp.where(sees, both, mixed.astype(jnp.float32)).astype(mixed.dtype)
