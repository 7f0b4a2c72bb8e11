"""The next token of each row: the best one, or one drawn with temperature, top-k, top-p and min-p.

In: per row its logits; to draw, a noise key and four settings. Out: a token per row, -1 where there
is none.
Must not know: seeds and positions (only the keys made of them), penalties, log-probabilities.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import jax
from jax import Array

from pallas_kernels.choice import choose
from pallas_kernels.token_sampling.xla import best_tokens_xla, sample_tokens_xla

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Int, UInt32

BEST = {
    "xla": best_tokens_xla,
    "cpu": "pallas_kernels.cpu.sampling:best_tokens_cpu",
}
DRAWN = {
    "xla": sample_tokens_xla,
    "triton": "pallas_kernels.token_sampling.triton:sample_tokens_triton",
    "cpu": "pallas_kernels.cpu.sampling:sample_tokens_cpu",
}


@partial(jax.jit, static_argnames="implementation")
def best_tokens(
    logits: Float[Array, "rows vocab"], *, implementation: str | None = None
) -> Int[Array, " rows"]:
    """The index of each row's highest logit, ties by lowest index; -1 for rows that hold NaN or
    +inf, or only -inf. The XLA implementation takes logits that are sharded, too."""
    return choose("best_tokens", implementation, BEST)(logits)


@partial(jax.jit, static_argnames="implementation")
def sample_tokens(
    logits: Float[Array, "rows vocab"],
    keys: UInt32[Array, "rows 2"],
    temperature: Float[Array, " rows"],
    top_k: Int[Array, " rows"],
    top_p: Float[Array, " rows"],
    min_p: Float[Array, " rows"],
    *,
    implementation: str | None = None,
) -> Int[Array, " rows"]:
    """The next token of each row, ties by lowest index; -1 for rows that cannot be sampled.

    A row with a temperature below GREEDY_BELOW (see xla.py) is greedy. Other rows' logits are
    divided by it and filtered by min-p (0: off), then top-k (0: off), then top-p of the remaining
    mass (1: off); the token is drawn by adding Gumbel noise, which depends on the row's threefry
    key alone. Filters keep the lowest indices among equal logits. A row cannot be sampled if it
    holds NaN or +inf, or only -inf.
    """
    run = choose("sample_tokens", implementation, DRAWN)
    return run(logits, keys, temperature, top_k, top_p, min_p)
