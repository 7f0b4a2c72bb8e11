"""Operations on whole rows of logits, by implementation.

XLA's sums over a row depend on the number of rows in their last bits, so an implementation whose
results must not depend on the batch brings its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from jengine.sampling.filters import cut_logits
from pallas_kernels.cpu import logits as kernels
from pallas_kernels.token_sampling import best_tokens

# [S, V] to the highest logit of each row and the sum of exp(logit - highest).
SoftmaxParts = Callable[[Array], tuple[Array, Array]]


class RowOperations(NamedTuple):
    """What reads all logits of a row."""

    best_tokens: Callable[[Array], Array]  # -1 for rows that cannot be used
    softmax_parts: SoftmaxParts
    # Logits, top_k, top_p and min_p to logits that are -inf where a token is cut off.
    cut_logits: Callable[[Array, Array, Array, Array], Array]


def softmax_parts(logits: Array) -> tuple[Array, Array]:
    """In XLA."""
    highest = jnp.max(logits, axis=-1)
    return highest, jnp.sum(jnp.exp(logits - highest[:, None]), axis=-1)


XLA = RowOperations(best_tokens, softmax_parts, cut_logits)
ROW_OPERATIONS = {
    "cpu": RowOperations(
        partial(best_tokens, implementation="cpu"), kernels.softmax_parts, kernels.cut_logits
    )
}


def row_operations(implementation: str | None) -> RowOperations:
    """The operations of this implementation; XLA's where it has none of its own."""
    return ROW_OPERATIONS.get(implementation or "", XLA)
