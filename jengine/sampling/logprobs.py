"""Log-probabilities of chosen tokens, of the best tokens, and ranks.

In: logits and token ids. Out: Logprobs, the chosen token first, then the best ones, or those that
its slot names.
Must not know: how a token was chosen, requests, which mode the user asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jengine.sampling.row_operations import SoftmaxParts, row_operations

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int32


class Logprobs(NamedTuple):
    """K + 1 columns: the chosen token, then the K best (ties by lowest index), or the slot's own
    ids. With ids there may be more columns; those that a slot does not fill hold -1 and -inf."""

    values: Array  # f32[S, K + 1]
    ids: Array  # i32[S, K + 1]
    rank: Array  # i32[S] tokens at least as likely as the chosen one: 1 = best


def score_tokens(
    logits: Float[Array, "tokens vocab"],
    targets: Int32[Array, " tokens"],
    k: int,
    implementation: str | None = None,
) -> Logprobs:
    """Log-probabilities of the given tokens, in the layout of those of sampled tokens.

    A target of -1 gives a NaN value and rank 0. Callers with many tokens pass them in chunks.
    """
    logits = logits.astype(jnp.float32)
    return gather_logprobs(logits, targets, k, row_operations(implementation).softmax_parts)


def gather_logprobs(
    logits: Float32[Array, "tokens vocab"],
    tokens: Int32[Array, " tokens"],
    k: int,
    parts: SoftmaxParts | None,
    own: Int32[Array, "tokens ids"] | None = None,
) -> Logprobs:
    """Values of `tokens` and of the k best, where a slot has no ids of its `own`; without
    `parts` of a softmax these are logits."""
    with jax.named_scope("logprobs"):
        chosen = jnp.take_along_axis(logits, tokens[:, None], axis=-1, mode="clip")  # [S, 1]
        chosen = jnp.where(tokens[:, None] < 0, jnp.nan, chosen)
        # Order and rank are taken from the logits: subtracting can merge neighbours.
        rank = jnp.sum((logits >= chosen).astype(jnp.int32), axis=-1)
        best, best_ids = lax.top_k(logits, k)
        if own is not None:
            best, best_ids = _with_own(logits, best, best_ids, own)
        values = jnp.concatenate([chosen, best], axis=-1)
        ids = jnp.concatenate([tokens[:, None], best_ids], axis=-1)
        if parts is not None:
            highest, total = parts(logits)
            values = (values - highest[:, None]) - jnp.log(total)[:, None]
        return Logprobs(values, ids, rank)


def _with_own(logits: Array, best: Array, best_ids: Array, own: Array) -> tuple[Array, Array]:
    """Values and ids where slots with ids of their own, filled up with -1, have these."""
    width = max(best.shape[1], own.shape[1])
    found = jnp.take_along_axis(logits, own, axis=-1, mode="clip")
    found = jnp.where(own < 0, -jnp.inf, found)
    found, best = (_widened(values, width, -jnp.inf) for values in (found, best))
    own, best_ids = (_widened(ids, width, -1) for ids in (own, best_ids))
    has_own = own[:, :1] >= 0
    return jnp.where(has_own, found, best), jnp.where(has_own, own, best_ids)


def _widened(array: Array, width: int, filling: float) -> Array:
    return jnp.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=filling)
