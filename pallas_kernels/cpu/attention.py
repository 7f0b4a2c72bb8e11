"""Paged attention on CPUs: one kernel for decodes, prefill chunks and shared prefixes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pallas_kernels.cpu.library import ffi_call
from pallas_kernels.cpu.matmul import floats, integers
from pallas_kernels.shapes import as_scalar


def decode_attention_cpu(
    q: Array,
    cache: Array,
    layer: int | Array,
    tables: Array,
    starts: Array,
    lengths: Array,
    **options: Any,
) -> tuple[Array, Array]:
    """See `decode_attention`. Decodes are tiles of one query."""
    return prefill_attention_cpu(q, cache, layer, tables, starts, lengths - 1, **options)


def prefill_attention_cpu(
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
    ends: Array | None = None,
) -> tuple[Array, Array]:
    """See `prefill_attention`; returns the log-sum-exp as well."""
    results = (
        jax.ShapeDtypeStruct(q.shape, jnp.bfloat16 if dtype == jnp.bfloat16 else jnp.float32),
        jax.ShapeDtypeStruct(q.shape[:2], jnp.float32),
    )
    out, lse = ffi_call("attention", results)(
        q if q.dtype == jnp.bfloat16 else q.astype(jnp.float32),
        cache, as_scalar(layer), tables, starts, positions,
        integers(ends), floats(sinks),
        window=np.int64(window or 0),
        scale=np.float32(head_dim**-0.5 if scale is None else scale),
        soft_cap=np.float32(soft_cap or 0),
    )  # fmt: skip
    return out.astype(dtype), lse
