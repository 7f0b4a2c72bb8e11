"""Prefill attention equals numpy: tiles of one row each, chunks, windows, padding."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.prefill_attention import prefill_attention
from tests.marks import slow
from tests.pallas_kernels.implementations import IMPLEMENTATIONS
from tests.pallas_kernels.paged_cases import Case, attend, random_case

TILE = 8
# A tile: how many tokens its row has when the tile's last query runs, and its number of queries.
TILES = [(1, 1), (8, 8), (9, 1), (21, 5), (270, 8), (0, 0)]


def run(case: Case, q: np.ndarray, positions: np.ndarray, **options: object) -> np.ndarray:
    return np.asarray(
        prefill_attention(
            jnp.asarray(q), jnp.asarray(case.cache), case.layer, jnp.asarray(case.tables),
            jnp.asarray(case.starts), jnp.asarray(positions, jnp.int32),
            head_dim=case.head_dim, window=case.window, **options,
        )
    )  # fmt: skip


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "window"),
    [(4, 2, 8, None), (6, 1, 4, 5), *slow((8, 2, 12, 1), (2, 2, 16, None), (4, 2, 8, 16))],
)
def test_equals_numpy(
    heads: int, kv_heads: int, head_dim: int, window: int | None, implementation: str
) -> None:
    ends = [end for end, _ in TILES]
    most = max(count for _, count in TILES)
    case = random_case(ends, kv_heads=kv_heads, head_dim=head_dim, window=window, queries=most)
    q = np.random.default_rng(1).normal(size=(len(TILES), TILE, heads, head_dim)).astype(np.float32)
    positions = np.full((len(TILES), TILE), -1, np.int32)
    for tile, (end, count) in enumerate(TILES):
        positions[tile, :count] = np.arange(end - count, end)
    result = run(
        case, q.reshape(-1, heads, head_dim), positions.reshape(-1), implementation=implementation
    ).reshape(q.shape)
    for tile, (end, count) in enumerate(TILES):
        for index in range(count):
            position = end - count + index
            expected = attend(q[tile, index], case.keys[tile], case.values[tile], position, window)
            np.testing.assert_allclose(result[tile, index], expected, atol=2e-5)
        assert (result[tile, count:] == 0).all()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("window", [5, *slow(None)])
@pytest.mark.parametrize(("scale", "soft_cap"), [(2.0, 3.0), *slow((0.9, None), (None, 0.5))])
def test_scale_and_soft_cap(
    scale: float | None, soft_cap: float | None, window: int, implementation: str
) -> None:
    case = random_case([2 * TILE], window=window, queries=2 * TILE)
    case.tables, case.starts = np.repeat(case.tables, 2, axis=0), np.repeat(case.starts, 2)
    q = np.random.default_rng(4).normal(size=(2 * TILE, 4, 8)).astype(np.float32)
    options = {"scale": scale, "soft_cap": soft_cap}
    result = run(case, q, np.arange(2 * TILE), implementation=implementation, **options)
    for position in range(2 * TILE):
        expected = attend(q[position], case.keys[0], case.values[0], position, window, **options)
        np.testing.assert_allclose(result[position], expected, atol=2e-5)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_tiles_of_one_row_may_share_its_blocks(implementation: str) -> None:
    case = random_case([2 * TILE])
    case.tables = np.repeat(case.tables, 2, axis=0)
    case.starts = np.repeat(case.starts, 2)
    q = np.random.default_rng(3).normal(size=(2 * TILE, 4, 8)).astype(np.float32)
    result = run(case, q, np.arange(2 * TILE), implementation=implementation)
    for position in range(2 * TILE):
        expected = attend(q[position], case.keys[0], case.values[0], position, None)
        np.testing.assert_allclose(result[position], expected, atol=2e-5)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("window", [None, 5, *slow(40)])
def test_queries_that_see_ahead(window: int | None, implementation: str) -> None:
    lengths = [2 * TILE + 3, 2, 70]
    case = random_case(lengths)
    tiles = [-(-length // TILE) for length in lengths]
    case.tables, case.starts = (np.repeat(x, tiles, axis=0) for x in (case.tables, case.starts))
    q = np.random.default_rng(6).normal(size=(sum(tiles) * TILE, 4, 8)).astype(np.float32)
    places = [np.arange(count * TILE) for count in tiles]
    own = [np.where(at < length, at, -1) for at, length in zip(places, lengths, strict=True)]
    ahead = 10_000 if window is None else window - 1
    case.window = None if window is None else 2 * window - 1
    positions = np.concatenate(own)
    result = run(
        case, q, np.where(positions >= 0, positions + ahead, -1), implementation=implementation,
        ends=jnp.asarray(np.repeat(lengths, tiles), jnp.int32),
    )  # fmt: skip
    rows = np.repeat(np.arange(len(lengths)), np.array(tiles) * TILE)
    for query, (row, position) in enumerate(zip(rows, positions, strict=True)):
        if position < 0:
            assert (result[query] == 0).all()
            continue
        first = 0 if window is None else max(0, position - window + 1)
        seen = slice(first, None if window is None else position + window)
        k, v = case.keys[row][seen], case.values[row][seen]
        expected = attend(q[query], k, v, len(k) - 1, None)
        np.testing.assert_allclose(result[query], expected, atol=2e-5)


def test_an_unknown_implementation_is_named() -> None:
    case = random_case([3])
    q = np.ones((TILE, 4, 8), np.float32)
    with pytest.raises(ValueError, match=r"prefill_attention.*'triton9'.*Available: .*xla"):
        run(case, q, np.full(TILE, -1), implementation="triton9")
