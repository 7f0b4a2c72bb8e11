"""Applies token masks: -inf for tokens that a row may not sample.

In: float32 logits; per row of the sampler's pool a bitmask for its next token and one after each of
its drafts (all ones without a mask). Must not know grammars or who made the masks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array

from jengine.sampling.acceptance import Drafted
from jengine.sampling.inputs import SamplingInput
from jengine.sampling.row_state import RowState

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float32, Int32


def allowed_logits(
    logits: Float32[Array, "slots vocab"],
    state: RowState,
    inputs: SamplingInput,
    drafts: Drafted | None = None,
) -> Float32[Array, "slots vocab"]:
    """Set masked tokens to -inf; slots without a mask are returned bit for bit."""
    with jax.named_scope("token_masks"):
        after = 0 if drafts is None else drafts.offsets
        words = state.mask.at[inputs.adjusted - 1, after].get(mode="clip")  # [S, W]
        bits = (
            words[:, :, None] >> jnp.arange(32, dtype=jnp.int32)[None, None, :]
        ) & 1  # [S, W, 32]
        allowed = bits.reshape(len(words), -1)[:, : logits.shape[1]] == 1
        return jnp.where(allowed | (inputs.adjusted == 0)[:, None], logits, -jnp.inf)


def with_masks(
    masks: Int32[Array, "rows drafts words"],
    rows: Int32[Array, " new"],
    after: Int32[Array, " new"],
    words: Int32[Array, "new words"],
) -> Int32[Array, "rows drafts words"]:
    """Write masks into the pool, each after a number of drafts; out-of-range rows are dropped."""
    return masks.at[rows, after].set(words, mode="drop")
