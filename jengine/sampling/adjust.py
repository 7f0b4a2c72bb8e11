"""Adjusts logits: allowed ids, bad words, min_tokens, logit bias, penalties.

In: float32 logits and the state of their rows. Out: logits whose argmax is the greedy token. A mask
that would leave a row without any token is skipped for that row: a grammar's mask, applied before,
takes precedence over allowed ids, and these over min_tokens and bad words. Must not know:
temperature, randomness, how the state was filled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array, lax

from jengine.config import MAX_BAD_WORDS
from jengine.sampling.inputs import SamplingInput
from jengine.sampling.row_parameters import COUNT_BITS, IN_PROMPT, IS_STOP
from jengine.sampling.row_state import RowState

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float32, Int32


def adjust(
    logits: Float32[Array, "slots vocab"],
    state: RowState,
    inputs: SamplingInput,
    earlier: Int32[Array, "slots drafts"] | None = None,
) -> Float32[Array, "slots vocab"]:
    """Return adjusted logits; slots that are not `adjusted` are returned bit for bit.

    `earlier` are the drafts before each slot (see `Drafted`), counted as if sampled.
    """
    adjusted, rows = inputs.adjusted.astype(bool), inputs.adjusted - 1  # [S]
    marks = state.marks.at[rows].get(mode="clip")  # [S, V]
    if earlier is not None:
        marks = _with_drafts(marks, earlier)
    bias = state.bias.at[rows].get(mode="clip")  # [S, V]
    with jax.named_scope("bias"):
        # Allowed ids (-inf elsewhere) and logit_bias in one addition; skipped where a grammar's
        # mask leaves none of the allowed ids.
        result = logits + bias
        something_left = jnp.any(result > -jnp.inf, axis=-1, keepdims=True)
        result = jnp.where(something_left, result, logits)
    with jax.named_scope("bad_words"):
        any_words = jnp.any(adjusted & (state.bad_word_of.at[rows, 0].get(mode="clip") >= 0))
        result = lax.cond(
            any_words,
            lambda logits: _mask(logits, _completes_bad_word(logits.shape, state, inputs, earlier)),
            lambda logits: logits,
            result,
        )
    with jax.named_scope("min_tokens"):
        too_early = inputs.positions < inputs.min_position  # [S]
        result = _mask(result, (marks & IS_STOP != 0) & too_early[:, None])
    with jax.named_scope("penalties"):
        result = _penalise(result, marks, inputs)
    return jnp.where(adjusted[:, None], result, logits)


def _mask(logits: Array, forbidden: Array) -> Array:
    masked = jnp.where(forbidden, -jnp.inf, logits)
    something_left = jnp.any(masked > -jnp.inf, axis=-1, keepdims=True)
    return jnp.where(something_left, masked, logits)


def _with_drafts(marks: Array, earlier: Array) -> Array:
    """Token marks of each slot, with its drafts counted as generated."""
    slot = jnp.arange(marks.shape[0], dtype=jnp.int32)[:, None]
    token = jnp.where(earlier >= 0, earlier, marks.shape[1])  # past the end: dropped
    return marks.at[slot, token].add(1, mode="drop")


def _completes_bad_word(
    shape: tuple[int, ...], state: RowState, inputs: SamplingInput, earlier: Array | None
) -> Array:
    """Mask bool[S, V] of tokens that would complete a bad word, matched on generated tokens
    only."""
    rows = inputs.adjusted - 1  # [S]
    tokens, word_of, distance = (
        flat.at[rows].get(mode="clip")  # [S, 1024]
        for flat in (state.bad_words, state.bad_word_of, state.bad_word_distance)
    )
    position = inputs.positions[:, None] - distance  # where an entry would have been generated
    generated = position >= inputs.prompt_length[:, None]  # rules out negative positions too
    column = position % state.history.shape[1]
    stands = state.history.at[rows[:, None], column].get(mode="clip")
    if earlier is not None:
        slot = lax.broadcasted_iota(jnp.int32, distance.shape, 0)
        # Not looked up at a distance of 0 (the word's last token) or -1 (padding).
        back = jnp.where(distance > 0, distance - 1, earlier.shape[1])
        drafted = earlier.at[slot, back].get(mode="fill", fill_value=-1)
        stands = jnp.where(drafted >= 0, drafted, stands)
    missing = (distance > 0) & ~(generated & (stands == tokens))

    row = lax.broadcasted_iota(jnp.int32, tokens.shape, 0)
    word = jnp.where(word_of < 0, MAX_BAD_WORDS, word_of)  # past the end: dropped
    misses = jnp.zeros((shape[0], MAX_BAD_WORDS), jnp.int32)
    misses = misses.at[row, word].add(missing.astype(jnp.int32), mode="drop")
    complete = misses.at[row, word].get(mode="fill", fill_value=1) == 0
    last = jnp.where(complete & (distance == 0), tokens, shape[1])
    return jnp.zeros(shape, bool).at[row, last].set(True, mode="drop")


def _penalise(logits: Array, marks: Array, inputs: SamplingInput) -> Array:
    count = marks & COUNT_BITS  # [S, V]
    generated = count > 0
    seen = generated | (marks & IN_PROMPT != 0)
    repetition = jnp.where(seen, inputs.repetition[:, None], 1.0)
    logits = jnp.where(logits > 0, logits / repetition, logits * repetition)
    logits = logits - inputs.frequency[:, None] * count.astype(jnp.float32)
    return logits - inputs.presence[:, None] * generated.astype(jnp.float32)
