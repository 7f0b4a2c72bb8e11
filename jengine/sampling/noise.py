"""Random numbers of the sampler: one key per (engine seed, request seed, position).

In: seeds and positions. Out: Gumbel noise over the vocabulary. Must not know: logits, batch rows; a
row's noise depends on its key alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float32, Int32, Key, UInt32


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
