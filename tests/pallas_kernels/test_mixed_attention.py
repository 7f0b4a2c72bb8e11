"""Decodes and prefill chunks of one step: the bits of the two operations, in one array."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.decode_attention import decode_attention
from pallas_kernels.mixed_attention import mixed_attention
from pallas_kernels.prefill_attention import prefill_attention
from tests.marks import slow
from tests.pallas_kernels.implementations import IMPLEMENTATIONS, TRITON
from tests.pallas_kernels.paged_cases import random_case

# Two rows decode and one is padding; a chunk of the third row fills two tiles, one is padding.
LENGTHS = [5, 300, 0, 7]
DECODED = [4, 299, -1]
TILE = 4
CHUNKS = [[0, 1, 2, 3], [4, 5, 6, -1], [-1] * TILE]
OWNERS = [3, 3, 0]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("prefills", [True, *slow(False)])
def test_equals_one_after_the_other(prefills: bool, implementation: str) -> None:
    case = random_case(LENGTHS)
    tiles = [0, 1, 2, *(OWNERS if prefills else [])]
    positions = jnp.asarray([*DECODED, *(np.ravel(CHUNKS) if prefills else [])], jnp.int32)
    q = jnp.asarray(np.random.default_rng(5).normal(size=(len(positions), 4, 8)), jnp.float32)
    tables, starts = jnp.asarray(case.tables[tiles]), jnp.asarray(case.starts[tiles])
    cache, rows = jnp.asarray(case.cache), len(DECODED)
    options: dict[str, Any] = {
        "head_dim": 8, "soft_cap": 4.0, "sinks": jnp.arange(4.0), "dtype": "bfloat16",
        "implementation": implementation,
    }  # fmt: skip
    found = mixed_attention(q, cache, case.layer, tables, starts, positions, rows=rows, **options)
    expected = [
        decode_attention(
            q[:rows], cache, case.layer, tables[:rows], starts[:rows], positions[:rows] + 1,
            **options,
        )
    ]  # fmt: skip
    if prefills:
        expected.append(
            prefill_attention(
                q[rows:], cache, case.layer, tables[rows:], starts[rows:], positions[rows:],
                **options,
            )
        )  # fmt: skip
    found, whole = np.asarray(found, np.float32), np.concatenate(expected).astype(np.float32)
    np.testing.assert_array_equal(found, whole)
    assert np.isfinite(found).all()
    assert (found[2] == 0).all()
    assert (np.abs(found[:2]) > 0).any()


@pytest.mark.parametrize("implementation", ["xla", TRITON])
@pytest.mark.parametrize("window", [5, *slow(None)])
def test_joined_tiles_give_what_each_tile_gives(window: int | None, implementation: str) -> None:
    """Chunks of 5, 1 and 3 tiles, whose last ones are not full, in runs of up to 2."""
    lengths, chunks, joined = [5, 61, 1, 9], [(1, 21, 18), (2, 0, 1), (3, 0, 9)], 2
    case = random_case(lengths, window=window, queries=40)
    owners, positions, runs = [], [-1], []
    for row, first, count in chunks:
        tiles = -(-count // TILE)
        runs += range(len(owners), len(owners) + tiles, joined)
        owners += [row] * tiles
        positions += [*range(first, first + count), *[-1] * (tiles * TILE - count)]
    runs += [len(owners), len(owners) + 2, len(owners) + 3, len(owners) + 3]
    owners += [0] * 3
    positions += [-1] * (3 * TILE)
    q = jnp.asarray(np.random.default_rng(6).normal(size=(len(positions), 4, 8)), jnp.float32)
    tables, starts = (jnp.asarray(one[[0, *owners]]) for one in (case.tables, case.starts))
    given: Any = (q, jnp.asarray(case.cache), case.layer, tables, starts)
    places = jnp.asarray(positions, jnp.int32)
    options: dict[str, Any] = {"rows": 1, "head_dim": 8, "window": window}
    in_runs = {"runs": jnp.asarray(runs, jnp.int32), "joined": joined}
    expected = np.asarray(mixed_attention(*given, places, implementation="xla", **options))
    found = mixed_attention(*given, places, implementation=implementation, **options, **in_runs)
    np.testing.assert_allclose(np.asarray(found), expected, atol=2e-5)
    assert (expected[np.asarray(positions) < 0] == 0).all()


def test_an_unknown_implementation_is_named() -> None:
    case = random_case([3])
    q, zeros = jnp.ones((1, 4, 8)), jnp.zeros(1, jnp.int32)
    with pytest.raises(ValueError, match="'cuda'"):
        mixed_attention(
            q, jnp.asarray(case.cache), case.layer, jnp.asarray(case.tables), zeros, zeros,
            rows=1, head_dim=8, implementation="cuda",
        )  # fmt: skip
