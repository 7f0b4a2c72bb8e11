"""Slots behind a row's last key, which another request has left, do not reach the row.

For every implementation that can run here, every kind of cache, and keys and values that are NaN or
infinite there. FlashAttention-4's kernels, which multiply whole blocks, are in test_fa4.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from pallas_kernels.cache_write import write_cache
from pallas_kernels.decode_attention import decode_attention
from pallas_kernels.layout import BFLOAT16_BITS, FP8_BITS, INT8, cache_shape
from pallas_kernels.prefill_attention import prefill_attention
from tests.marks import slow
from tests.pallas_kernels.implementations import IMPLEMENTATIONS

LENGTHS, BLOCK, PAGES, HEADS, KV_HEADS, DIM, TILE = (5, 21, 8), 8, 3, 4, 2, 16, 8
KINDS = {"float32": np.float32, "bfloat16": jnp.bfloat16, "int8": INT8, "fp8": FP8_BITS}
TABLES = 1 + np.arange(len(LENGTHS) * PAGES, dtype=np.int32).reshape(len(LENGTHS), PAGES)


def filled(dtype: Any, left: float) -> Array:
    """All slots hold what another request has left; then each row writes its own."""
    cache = jnp.zeros(cache_shape(1, TABLES.size + 1, BLOCK, KV_HEADS, DIM, dtype), dtype)
    rng = np.random.default_rng(0)

    def write(cache: Array, slots: np.ndarray, heads: Any) -> Array:
        k, v = (jnp.asarray(x, jnp.float32) for x in heads)
        return write_cache(cache, 0, k, v, jnp.asarray(slots, jnp.int32))

    every = np.arange(cache.shape[2] * BLOCK)
    cache = write(cache, every, np.full((2, every.size, KV_HEADS, DIM), left))
    for table, length in zip(TABLES, LENGTHS, strict=True):
        at = np.arange(length)
        slots = table[at // BLOCK] * BLOCK + at % BLOCK
        cache = write(cache, slots, rng.normal(size=(2, length, KV_HEADS, DIM)))
    return cache


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("left", [np.nan, *slow(np.inf, -np.inf)])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_have_the_bits_that_they_have_beside_zeros(
    kind: str, left: float, implementation: str
) -> None:
    q = jnp.asarray(np.random.default_rng(1).normal(size=(PAGES * TILE, HEADS, DIM)), jnp.float32)
    tables = jnp.asarray(TABLES)
    positions = jnp.asarray([*range(21), -1, -1, -1], jnp.int32)
    dtype, found = KINDS[kind], []
    if kind == "bfloat16" and implementation in ("xla", "cpu"):
        dtype = BFLOAT16_BITS
    for stale in (left, 0.0):
        cache = filled(dtype, stale)
        decoded = decode_attention(
            q[: len(LENGTHS)], cache, 0, tables, jnp.zeros(len(LENGTHS), jnp.int32),
            jnp.asarray(LENGTHS, jnp.int32), head_dim=DIM, implementation=implementation,
        )  # fmt: skip
        prefilled = prefill_attention(
            q, cache, 0, jnp.tile(tables[1], (PAGES, 1)), jnp.zeros(PAGES, jnp.int32), positions,
            head_dim=DIM, implementation=implementation,
        )  # fmt: skip
        found.append((np.asarray(decoded), np.asarray(prefilled)[:21]))
    for here, there in zip(*found, strict=True):
        assert np.isfinite(here).all()
        np.testing.assert_array_equal(here, there)
