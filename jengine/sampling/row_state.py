"""The sampler's state between steps, for requests with penalties, bias, masks or ids to score.

In: Admission arrays and sampled tokens. Out: the next RowState, written in place if the caller
donates the old one. Must not know: logits, requests, how the state is used.

Small settings (temperature, seeds) travel with each step's input. Only what is as large as the
vocabulary (penalty counts, bias, masks) is state: a pool of fixed size whose rows are independent
of engine rows, written by a small donated program on admission. Default 264 MB (256 requests,
vocabulary 128,000); requests beyond it wait, as for rows and blocks. A growing pool would change
every program's shapes and recompile them all. `compilation_config={"max_adjusted_seqs": n}` sets
its size; if the model's generation config gives every request a penalty, the pool has one row per
engine row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jengine.sampling.row_parameters import (
    MAX_BAD_WORD_TOKENS,
    Admission,
    history_length,
    logprob_width,
    mask_words,
)

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Bool, Int, Int32


class RowState(NamedTuple):
    """Valid only for pool rows that SamplingInput's `adjusted` names. L: `history_length`."""

    marks: Array  # i32[A, V] times generated; flags IN_PROMPT and IS_STOP above the count
    bias: Array  # f32[A, V] logit_bias; -inf where the token is not allowed
    history: Array  # i32[A, L] the last L tokens, each at its position modulo L; unknown: -1
    bad_words: Array  # i32[A, 1024] the tokens of all bad words, one word after the other
    bad_word_of: Array  # i32[A, 1024] which word an entry belongs to, -1 = none
    bad_word_distance: Array  # i32[A, 1024] tokens from an entry to the end of its word
    # i32[A, 1 + K, W] bitmask of allowed next tokens, and of those after each of K drafts; W:
    # `mask_words`
    mask: Array
    # i32[A, P] ids whose log-probabilities are requested, padded with -1; P: `logprob_width`
    logprob_ids: Array


def empty_row_state(rows: int, vocab: int, max_len: int, masked_drafts: int = 0) -> RowState:
    """Allocate an empty pool of `rows` rows, with masks after each of `masked_drafts` drafts."""
    flat = (rows, MAX_BAD_WORD_TOKENS)
    return RowState(
        marks=jnp.zeros((rows, vocab), jnp.int32),
        bias=jnp.zeros((rows, vocab), jnp.float32),
        history=jnp.full((rows, history_length(max_len)), -1, jnp.int32),
        bad_words=jnp.full(flat, -1, jnp.int32),
        bad_word_of=jnp.full(flat, -1, jnp.int32),
        bad_word_distance=jnp.full(flat, -1, jnp.int32),
        mask=jnp.full((rows, 1 + masked_drafts, mask_words(vocab)), -1, jnp.int32),
        logprob_ids=jnp.full((rows, logprob_width(vocab)), -1, jnp.int32),
    )


def admit(state: RowState, row: Int[Array, ""], admission: Admission) -> RowState:
    """Overwrite one pool row; an out-of-range row writes nothing."""
    with jax.named_scope("admit"):
        written = (
            kept.at[row].set(new, mode="drop") for kept, new in zip(state, admission, strict=True)
        )
        return RowState(*written)


def record(
    state: RowState,
    rows: Int32[Array, " slots"],
    positions: Int32[Array, " slots"],
    tokens: Int32[Array, " slots"],
    keep: Bool[Array, " slots"],
) -> RowState:
    """Add each slot's sampled token to its pool row's counts and history, where `keep` holds."""
    with jax.named_scope("record"):
        # Dropping needs an index past the end: negative ones would wrap around.
        target = jnp.where(keep, rows, state.marks.shape[0])
        return state._replace(
            marks=state.marks.at[target, tokens].add(1, mode="drop"),
            history=state.history.at[target, positions % state.history.shape[1]].set(
                tokens, mode="drop"
            ),
        )
