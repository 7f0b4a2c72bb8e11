"""Paged attention for runs of query tokens: prompt chunks, prefix hits, mixed lengths."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from pallas_kernels.choice import choose
from pallas_kernels.prefill_attention.xla import prefill_attention_xla

IMPLEMENTATIONS = {
    "xla": prefill_attention_xla,
    "triton": "pallas_kernels.prefill_attention.triton:prefill_attention_triton",
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
def prefill_attention(
    q: Array,
    cache: Array,
    layer: int | Array,
    tables: Array,
    starts: Array,
    positions: Array,
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
    """Attend q [T, heads, dim] causally to cached tokens; [T, heads, dim] of type `dtype`.

    Queries lie in tiles of T / len(tables) tokens; a tile belongs to one row, whose blocks are
    tables[tile], the first of them at position starts[tile]. positions [T] is -1 for padding, which
    fills the end of a tile; such results are zero. Tiles that are used come first. The options are
    as in `decode_attention`; return_lse adds float32 [T, heads].
    """
    run = choose("prefill_attention", implementation, IMPLEMENTATIONS)
    options = {"window": window, "scale": scale, "soft_cap": soft_cap}
    given = {"sinks": sinks, "dtype": jnp.dtype(dtype)}
    out, lse = run(
        q, cache, layer, tables, starts, positions, head_dim=head_dim, **options, **given
    )
    return (out, lse) if return_lse else out
