"""Operations over whole rows of logits, by implementation.

XLA's row sums depend on the number of rows in their last bits, so a batch-invariant implementation
brings its own. Noise is included: programs with and without filtered logits must draw the same
tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jengine.sampling.filters import cut_logits
from jengine.sampling.noise import gumbel, row_keys
from pallas_kernels.cpu import logits as kernels
from pallas_kernels.cpu.sampling import gumbel_noise, noise_keys
from pallas_kernels.token_sampling import best_tokens

# [S, V] to the highest logit of each row and the sum of exp(logit - highest).
SoftmaxParts = Callable[[Array], tuple[Array, Array]]


class RowOperations(NamedTuple):
    """Operations that reduce or fill a whole row of logits."""

    best_tokens: Callable[[Array], Array]  # -1 for rows that cannot be used
    softmax_parts: SoftmaxParts
    # Logits, top_k, top_p and min_p to logits that are -inf where a token is cut off.
    cut_logits: Callable[[Array, Array, Array, Array], Array]
    # The engine's key, seeds and positions to a noise key per row, u32[S, 2].
    row_keys: Callable[[Array, Array, Array], Array]
    # Noise keys and the vocabulary's size to Gumbel noise, f32[S, V].
    gumbel: Callable[[Array, int], Array]


def softmax_parts(logits: Array) -> tuple[Array, Array]:
    """Row maximum and sum of exp(x - maximum), in XLA."""
    highest = jnp.max(logits, axis=-1)
    return highest, jnp.sum(jnp.exp(logits - highest[:, None]), axis=-1)


def row_keys_as_words(key_data: Array, seed: Array, positions: Array) -> Array:
    """Sampling keys as u32[S, 2], in XLA."""
    return jax.random.key_data(row_keys(key_data, seed, positions))


def gumbel_of_words(keys: Array, vocab: int) -> Array:
    """Gumbel noise from keys u32[S, 2], in XLA."""
    return gumbel(jax.random.wrap_key_data(keys, impl="threefry2x32"), vocab)


XLA = RowOperations(best_tokens, softmax_parts, cut_logits, row_keys_as_words, gumbel_of_words)
ROW_OPERATIONS = {
    "cpu": RowOperations(
        partial(best_tokens, implementation="cpu"), kernels.softmax_parts, kernels.cut_logits,
        noise_keys, gumbel_noise,
    )
}  # fmt: skip


def row_operations(implementation: str | None) -> RowOperations:
    """Operations of an implementation; XLA's if it has none of its own."""
    return ROW_OPERATIONS.get(implementation or "", XLA)
