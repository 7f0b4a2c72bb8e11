"""Causal attention among the new tokens of a step, from uncached keys and values.

Chunks of several prompts are concatenated; a token attends within its own chunk. Plain XLA: blocks
of queries, online softmax over blocks of keys.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

from pallas_kernels.running_softmax import SoftmaxState

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int

TOKENS_AT_ONCE = 64


@partial(jax.jit, static_argnames=("scale", "window", "dtype"))
def chunk_attention(
    q: Float[Array, "tokens heads dim"],
    keys: Float[Array, "tokens heads dim"],
    values: Float[Array, "tokens heads value"],
    firsts: Int[Array, " tokens"],
    *,
    scale: float,
    window: int | None = None,
    dtype: DTypeLike = jnp.float32,
) -> tuple[Float[Array, "tokens heads value"], Float32[Array, "tokens heads"]]:
    """Causal attention within chunks. Returns outputs and log-sum-exp.

    firsts[i] is the index of the first token of token i's chunk. Padding has firsts[i] > i and
    arbitrary output; its keys and values must be finite. Scores are q @ k * scale; with a window a
    token attends to at most that many tokens, itself included.
    """
    tokens, heads, dim = values.shape
    count = -(-tokens // TOKENS_AT_ONCE)
    padding = count * TOKENS_AT_ONCE - tokens
    # [1, heads, tokens, dim], as in `SoftmaxState`.
    q, keys, values = (
        jnp.pad(x, ((0, padding), (0, 0), (0, 0))).swapaxes(0, 1)[None] for x in (q, keys, values)
    )
    own = jnp.arange(count * TOKENS_AT_ONCE, dtype=jnp.int32)
    lowest = jnp.pad(firsts, (0, padding), constant_values=tokens)
    if window is not None:
        lowest = jnp.maximum(lowest, own - window + 1)

    def queries(block: Array, out: tuple[Array, Array]) -> tuple[Array, Array]:
        index = block * TOKENS_AT_ONCE
        own_q = _block(q, index, 2)
        limits = _block(lowest, index, 0), _block(own, index, 0)

        def some_keys(key_block: Array, running: SoftmaxState) -> SoftmaxState:
            at = key_block * TOKENS_AT_ONCE
            key = at + jnp.arange(TOKENS_AT_ONCE, dtype=jnp.int32)[None, :]
            seen = (key >= limits[0][:, None]) & (key <= limits[1][:, None])
            some = _block(keys, at, 2), _block(values, at, 2)
            return running.with_chunk(own_q, *some, seen[None, None], scale, None)

        first = jnp.min(limits[0]) // TOKENS_AT_ONCE
        made = lax.fori_loop(first, block + 1, some_keys, SoftmaxState.of_nothing(own_q, dim))
        mixed, lse = made.result(None)
        return (
            lax.dynamic_update_slice_in_dim(out[0], mixed[0], index, 1),
            lax.dynamic_update_slice_in_dim(out[1], lse[0], index, 1),
        )

    shape = (heads, count * TOKENS_AT_ONCE)
    nothing = jnp.zeros((*shape, dim), jnp.float32), jnp.full(shape, -jnp.inf, jnp.float32)
    # Padding comes last, with lowest > own.
    used = jnp.max(jnp.where(lowest <= own, own // TOKENS_AT_ONCE + 1, 0))
    out, lse = lax.fori_loop(0, used, queries, nothing)
    out, lse = (x.swapaxes(0, 1)[:tokens] for x in (out, lse))
    return out.astype(dtype), lse


def _block(x: Array, start: Array, axis: int) -> Array:
    return lax.dynamic_slice_in_dim(x, start, TOKENS_AT_ONCE, axis)
