"""Log-probabilities of chosen tokens, of the best tokens, and ranks.

In: logits and token ids. Out: Logprobs, the chosen token first, then the best ones.
Must not know: why a token was chosen, requests, which mode the user asked for.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax


class Logprobs(NamedTuple):
    """K + 1 columns: the chosen token, then the K best (ties by lowest index)."""

    values: Array  # f32[S, K + 1]
    ids: Array  # i32[S, K + 1]
    rank: Array  # i32[S] tokens at least as likely as the chosen one: 1 = best


def score_tokens(logits: Array, targets: Array, k: int) -> Logprobs:
    """Score given tokens i32[T] under logits [T, V]; the layout of sampled tokens' logprobs.

    A target of -1 gives a NaN value and rank 0. For large [T, V] the caller works in chunks.
    """
    logits = logits.astype(jnp.float32)
    return gather_logprobs(logits, targets, k, normalise=True)


def gather_logprobs(logits: Array, tokens: Array, k: int, *, normalise: bool) -> Logprobs:
    """Values of `tokens` and the k best; logits themselves where `normalise` is off."""
    with jax.named_scope("logprobs"):
        chosen = jnp.take_along_axis(logits, tokens[:, None], axis=-1, mode="clip")  # [S, 1]
        chosen = jnp.where(tokens[:, None] < 0, jnp.nan, chosen)
        # Order and rank are taken from the logits: subtracting can merge neighbours.
        rank = jnp.sum((logits >= chosen).astype(jnp.int32), axis=-1)
        best, best_ids = lax.top_k(logits, k)
        values = jnp.concatenate([chosen, best], axis=-1)
        ids = jnp.concatenate([tokens[:, None], best_ids], axis=-1)
        return Logprobs(_normalised(values, logits) if normalise else values, ids, rank)


def _normalised(values: Array, logits: Array) -> Array:
    highest = jnp.max(logits, axis=-1, keepdims=True)
    total = jnp.sum(jnp.exp(logits - highest), axis=-1, keepdims=True)
    return (values - highest) - jnp.log(total)
