"""Prefill attention: long chunks by FlashAttention-4's kernel, all others by Triton's.

A program of the former takes at least 128 tokens of one chunk and query head; one of the latter
packs the query heads of a KV head, so short chunks fill it. The grid covers as many long chunks as
fit a step, which are few, so few programs are idle.
"""

from __future__ import annotations

import importlib

import jax.numpy as jnp
import numpy as np
from jax import Array

from pallas_kernels.fa4.rules import PrefillCall, refused
from pallas_kernels.layout import PLANES
from pallas_kernels.prefill_attention.chunks import chunks
from pallas_kernels.prefill_attention.triton import prefill_attention_triton

LONG = 256  # tokens of a chunk from which FlashAttention-4 is faster than Triton


def prefill_attention_fa4(
    q: Array,
    cache: Array,
    layer: int | Array,
    tables: Array,
    starts: Array,
    positions: Array,
    *,
    head_dim: int,
    window: int | None,
    scale: float | None,
    soft_cap: float | None,
    sinks: Array | None,
    dtype: np.dtype,
    runs: Array | None = None,
    joined: int = 1,
    ends: Array | None = None,
    into: tuple[Array, Array] | None = None,
) -> tuple[Array, Array]:
    """See `prefill_attention_triton`."""
    options = {"head_dim": head_dim, "window": window, "sinks": sinks}
    rest = {"scale": scale, "soft_cap": soft_cap, "runs": runs, "joined": joined, "ends": ends}
    room = positions.size // LONG  # for chunks that long
    asked = PrefillCall(cache.dtype, head_dim, cache.shape[3], soft_cap, ends is not None)
    if not room or refused(asked):
        return prefill_attention_triton(
            q, cache, layer, tables, starts, positions, dtype=dtype, into=into, **options, **rest
        )
    found = chunks(tables, starts, positions, runs)
    is_long = found.queries >= LONG
    # Triton computes short chunks, and writes zeros for long ones and padding.
    short = jnp.where(is_long[found.chunk_of_token], -1, positions)
    written = None if into is None else (into[0].astype(cache.dtype), into[1])
    both = prefill_attention_triton(
        q, cache, layer, tables, starts, short, dtype=cache.dtype, into=written, **options, **rest
    )
    (at,) = jnp.nonzero(is_long, size=room, fill_value=is_long.size)
    first = q.shape[0] - positions.size
    base = layer * len(PLANES) * cache.shape[2]
    # Imported here: it needs the packages of the extra.
    module = importlib.import_module("pallas_kernels.fa4.call")
    sequences = module.Sequences(
        jnp.append(found.first[at] + first, q.shape[0]),
        *(x.at[at].get(mode="fill", fill_value=0) for x in (found.queries, found.keys)),
        found.tables[at] + base,
    )
    out, lse = module.attend(
        q.astype(cache.dtype), cache, sequences, sinks, both, head_dim=head_dim, window=window,
        scale=head_dim**-0.5 if scale is None else scale,
    )  # fmt: skip
    return out.astype(dtype), lse
