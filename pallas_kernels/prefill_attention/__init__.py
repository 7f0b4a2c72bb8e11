"""Paged attention for runs of query tokens: prompt chunks, prefix hits, mixed lengths."""

from __future__ import annotations

from functools import partial

import jax
from jax import Array

from pallas_kernels.choice import choose
from pallas_kernels.prefill_attention.xla import prefill_attention_xla


# Traced once for all layers of a step: the layer is a run-time scalar.
@partial(jax.jit, static_argnames=("head_dim", "window", "scale", "soft_cap", "implementation"))
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
    implementation: str | None = None,
) -> Array:
    """Attend q [T, heads, dim] causally to cached tokens, float32 [T, heads, dim].

    Queries lie in tiles of T / len(tables) tokens; a tile belongs to one row, whose blocks are
    tables[tile], the first of them at position starts[tile]. positions [T] is -1 for padding, which
    fills the end of a tile; such results are zero. Tiles that are used come first. `scale` and
    `soft_cap` are as in `decode_attention`.
    """
    run = choose("prefill_attention", implementation, {"xla": prefill_attention_xla})
    options = {"window": window, "scale": scale, "soft_cap": soft_cap}
    return run(q, cache, layer, tables, starts, positions, head_dim=head_dim, **options)
