"""Greedy and random sampling: the next token of each row, with temperature, top-k, top-p and min-p.

In: logits per row; for random sampling a threefry key and four settings. Out: a token per row, -1
for invalid logits. Must not know seeds and positions (only the keys), penalties or
log-probabilities.
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
    """Argmax per row, ties to the lowest index; -1 for rows with NaN or +inf, or only -inf. XLA's
    implementation also takes sharded logits."""
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
    """Sample the next token of each row; -1 for rows with NaN or +inf, or only -inf.

    Rows with a temperature below GREEDY_BELOW (see xla.py) are greedy, ties to the lowest index.
    Others: logits / temperature, then min-p (0: off), top-k (0: off) and top-p of the remaining
    mass (1: off), which keep the lowest indices among ties; then the argmax after adding Gumbel
    noise, which depends only on the row's threefry key.
    """
    run = choose("sample_tokens", implementation, DRAWN)
    return run(logits, keys, temperature, top_k, top_p, min_p)
