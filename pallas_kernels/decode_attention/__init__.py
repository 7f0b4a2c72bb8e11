"""Paged attention for one query token a row."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from pallas_kernels.choice import choose
from pallas_kernels.decode_attention.xla import decode_attention_xla

IMPLEMENTATIONS = {
    "xla": decode_attention_xla,
    "triton": "pallas_kernels.decode_attention.triton:decode_attention_triton",
}


# Traced once for all layers of a step: the layer is a run-time scalar.
@partial(
    jax.jit,
    static_argnames=(
        "head_dim",
        "window",
        "scale",
        "soft_cap",
        "return_lse",
        "dtype",
        "implementation",
    ),
)
def decode_attention(
    q: Array,
    cache: Array,
    layer: int | Array,
    tables: Array,
    starts: Array,
    lengths: Array,
    *,
    head_dim: int,
    window: int | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    sinks: Array | None = None,
    return_lse: bool = False,
    dtype: DTypeLike = jnp.float32,
    implementation: str | None = None,
) -> Array | tuple[Array, Array]:
    """Attend q [R, heads, dim] to each row's cached tokens; [R, heads, dim] of type `dtype`.

    tables [R, pages] are block ids; the first block of row r begins at position starts[r].
    lengths [R] count the tokens a row may see, its own included; 0 marks padding, whose result is
    zero. Rows that are used come first. Unused blocks and slots may hold anything, NaN included.
    Scores are q @ k * scale (None: head_dim ** -0.5), then cap * tanh(score / cap) where given.
    sinks [heads] are one more score for each query of a head, whose value is zero. With return_lse
    the logarithm of each softmax's sum comes too, float32 [R, heads], sinks included; -inf for
    padding.
    """
    run = choose("decode_attention", implementation, IMPLEMENTATIONS)
    options = {"window": window, "scale": scale, "soft_cap": soft_cap}
    given = {"sinks": sinks, "dtype": jnp.dtype(dtype)}
    out, lse = run(q, cache, layer, tables, starts, lengths, head_dim=head_dim, **options, **given)
    return (out, lse) if return_lse else out
