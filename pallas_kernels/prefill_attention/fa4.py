"""Prefill attention: long chunks by FlashAttention-4's kernel, all others by Triton's.

Programs of the former take 128 queries of one chunk and head, of the latter the queries of all
heads that share keys, which short chunks fill. A step has room for few long chunks, so few programs
of the kernel find none.
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

LONG = 256  # tokens of a chunk for which the kernel is the faster one


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
    # Triton attends to the others, and fills what is left to the kernel, and padding, with zeros.
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
