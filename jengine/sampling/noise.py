"""Random numbers of the sampler: one key for each (engine seed, request seed, position).

In: seeds and positions. Out: Gumbel noise for each token of the vocabulary.
Must not know: logits, batch rows; a row's noise depends on nothing but its own key.
"""

import jax
import jax.numpy as jnp
from jax import Array


def row_keys(key_data: Array, seed: Array, positions: Array) -> Array:
    """key[S] from the engine's key u32[2], the request seeds u32[S, 2] and positions i32[S]."""
    base = jax.random.wrap_key_data(key_data, impl="threefry2x32")

    def row_key(words: Array, position: Array) -> Array:
        key = jax.random.fold_in(jax.random.fold_in(base, words[0]), words[1])
        return jax.random.fold_in(key, position)

    return jax.vmap(row_key)(seed, positions.astype(jnp.uint32))


def gumbel(keys: Array, vocab: int) -> Array:
    """Finite Gumbel noise f32[S, V].

    jax.random.gumbel draws from 2^23 values, too coarse where noise is large: with 10^5 tokens
    unlikely ones would be drawn far too rarely. Here 32 bits are spent where they matter.
    """
    bits = jax.vmap(lambda key: jax.random.bits(key, (vocab,), jnp.uint32))(keys)
    uniform = (bits.astype(jnp.float32) + 0.5) * 2.0**-32  # (0, 1], fine near 0
    uniform = jnp.minimum(uniform, 1 - 2.0**-24)
    return -jnp.log(-jnp.log1p(-uniform))
