"""Operations over whole rows of logits, by implementation.

XLA's row sums depend on the number of rows in their last bits, so a batch-invariant implementation
brings its own. Noise is included: programs with and without filtered logits must draw the same
tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jengine.sampling.filters import cut_logits
from pallas_kernels.cpu import logits as kernels
from pallas_kernels.cpu.sampling import gumbel_noise, noise_keys
from pallas_kernels.token_sampling import best_tokens

if TYPE_CHECKING:
    from jaxtyping import Float32, Int32, Key, UInt32

# [S, V] to the highest logit of each row and the sum of exp(logit - highest).
SoftmaxParts = Callable[[Array], tuple[Array, Array]]


class RowOperations(NamedTuple):
    """Operations that reduce or fill a whole row of logits."""

    best_tokens: Callable[[Array], Array]  # -1 for rows with NaN or +inf, or only -inf
    softmax_parts: SoftmaxParts
    # Logits, top_k, top_p and min_p to filtered logits (-inf for cut tokens).
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


def row_keys(
    key_data: UInt32[Array, "2"], seed: UInt32[Array, "slots 2"], positions: Int32[Array, " slots"]
) -> Key[Array, " slots"]:
    """Key per slot from the engine's key, the request's seed and the token's position."""
    base = jax.random.wrap_key_data(key_data, impl="threefry2x32")

    def row_key(words: Array, position: Array) -> Array:
        key = jax.random.fold_in(jax.random.fold_in(base, words[0]), words[1])
        return jax.random.fold_in(key, position)

    return jax.vmap(row_key)(seed, positions.astype(jnp.uint32))


def gumbel(keys: Key[Array, " slots"], vocab: int) -> Float32[Array, "slots vocab"]:
    """Finite Gumbel noise from 32 random bits.

    jax.random.gumbel draws from 2^23 values, too coarse in the tail: among 10^5 tokens, unlikely
    ones would be drawn far too rarely.
    """
    bits = jax.vmap(lambda key: jax.random.bits(key, (vocab,), jnp.uint32))(keys)
    uniform = (bits.astype(jnp.float32) + 0.5) * 2.0**-32  # (0, 1], fine near 0
    uniform = jnp.minimum(uniform, 1 - 2.0**-24)
    return -jnp.log(-jnp.log1p(-uniform))
