"""Draws the next token of each row: greedy, temperature, top-k, top-p and min-p, row by row.

In: logits, one noise key and four settings a row. Out: a token a row, -1 where there is none.
Must not know: seeds and positions (only the keys made of them), penalties, log-probabilities.
"""

from __future__ import annotations

from functools import partial

import jax
from jax import Array

from pallas_kernels.choice import choose
from pallas_kernels.token_sampling.xla import sample_tokens_xla

IMPLEMENTATIONS = {
    "xla": sample_tokens_xla,
    "triton": "pallas_kernels.token_sampling.triton:sample_tokens_triton",
}


@partial(jax.jit, static_argnames="implementation")
def sample_tokens(
    logits: Array,
    keys: Array,
    temperature: Array,
    top_k: Array,
    top_p: Array,
    min_p: Array,
    *,
    implementation: str | None = None,
) -> Array:
    """Tokens i32[S] for logits [S, V], ties by lowest index; -1 for rows that cannot be used.

    A row with a temperature below 1e-5 takes its best token. Others are divided by it, cut by
    min-p (0: off), then top-k (0: off), then top-p of what is left (1: off), and one of the rest is
    drawn by adding Gumbel noise, which depends on the row's threefry key u32[2] and on nothing
    else. Among equal logits the lowest indices stay. A row cannot be used if it holds NaN or +inf,
    or nothing but -inf.
    """
    run = choose("sample_tokens", implementation, IMPLEMENTATIONS)
    return run(logits, keys, temperature, top_k, top_p, min_p)
