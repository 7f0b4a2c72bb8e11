"""Log-probabilities of chosen and top tokens, and ranks.

In: logits and token ids. Out: Logprobs of the chosen token, then of the top K or of ids that the
request names. Must not know: how a token was chosen, requests, the user's logprobs mode.
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
    """K + 1 columns: the chosen token, then the top K (ties by lowest index) or the slot's
    requested ids. Unused columns hold -1 and -inf."""

    values: Array  # f32[S, K + 1]
    ids: Array  # i32[S, K + 1]
    rank: Array  # i32[S] tokens at least as likely as the chosen one: 1 = best


def score_tokens(
    logits: Float[Array, "tokens vocab"],
    targets: Int32[Array, " tokens"],
    k: int,
    implementation: str | None = None,
) -> Logprobs:
    """Log-probabilities of given tokens (prompt log-probabilities), laid out like sampled ones.

    A target of -1 gives NaN and rank 0. Callers chunk long inputs.
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
    """Log-probabilities of `tokens` and of the top k, or of `own` ids where a slot has them.
    Without `parts` (softmax) the values are logits."""
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
    """Replace the top-k columns by a slot's own ids (padded with -1), where it has any."""
    width = max(best.shape[1], own.shape[1])
    found = jnp.take_along_axis(logits, own, axis=-1, mode="clip")
    found = jnp.where(own < 0, -jnp.inf, found)
    found, best = (_widened(values, width, -jnp.inf) for values in (found, best))
    own, best_ids = (_widened(ids, width, -1) for ids in (own, best_ids))
    has_own = own[:, :1] >= 0
    return jnp.where(has_own, found, best), jnp.where(has_own, own, best_ids)


def _widened(array: Array, width: int, filling: float) -> Array:
    return jnp.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=filling)
