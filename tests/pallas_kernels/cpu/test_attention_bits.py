"""Attention of the CPU kernels: the same bits for a query as a decode or in a prefill chunk, alone
or beside others, with pages of its own or shared ones; and numpy's numbers over many shapes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.choice import cpu_problem
from pallas_kernels.decode_attention import decode_attention
from pallas_kernels.prefill_attention import prefill_attention
from tests.compiled import compiled
from tests.marks import slow
from tests.pallas_kernels.paged_cases import BLOCK_SIZE, Case, attend, random_case

problem = cpu_problem()
pytestmark = pytest.mark.skipif(bool(problem), reason=problem or "runs")

# Around the kernels' chunks of 64 and segments of 512 keys.
LENGTHS = [1, 63, 64, 65, 511, 512, 513, 1100]
TILE = 32


def queries(tokens: int, heads: int, dim: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(tokens, heads, dim)).astype(np.float32)


def decoded(case: Case, q: np.ndarray, rows: list[int], lengths: list[int], **options: Any) -> Any:
    return compiled(decode_attention)(
        q, case.cache, case.layer, case.tables[rows], case.starts[rows],
        np.asarray(lengths, np.int32),
        head_dim=case.head_dim, window=case.window, implementation="cpu", **options,
    )  # fmt: skip


def prefilled(
    case: Case, q: np.ndarray, rows: list[int], positions: np.ndarray, **options: Any
) -> Any:
    """Tiles of these rows; q and positions are [tiles, tile, ...]."""
    return compiled(prefill_attention)(
        q.reshape(-1, *q.shape[2:]), case.cache, case.layer, case.tables[rows], case.starts[rows],
        positions.reshape(-1).astype(np.int32),
        head_dim=case.head_dim, window=case.window, implementation="cpu", **options,
    )  # fmt: skip


def as_type(case: Case, dtype: str) -> Case:
    case.cache = case.cache.astype(jnp.dtype(dtype))
    return case


@pytest.mark.parametrize("dim", [50, 64, 112, *slow(32, 80, 96, 128, 256)])
@pytest.mark.parametrize("group", [1, 7, *slow(3, 6, 16)])
def test_head_and_group_sizes_equal_numpy(dim: int, group: int) -> None:
    case = random_case([70, 1, 530], kv_heads=2, head_dim=dim)
    q = queries(3, 2 * group, dim)
    found = np.asarray(decoded(case, q, [0, 1, 2], [70, 1, 530]))
    for row, length in enumerate([70, 1, 530]):
        expected = attend(q[row], case.keys[row], case.values[row], length - 1, None)
        np.testing.assert_allclose(found[row], expected, atol=2e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("window", [None, 1, 100, 600])
def test_a_decode_has_the_same_bits_alone_and_in_any_batch(dtype: str, window: int | None) -> None:
    case = as_type(random_case(LENGTHS, head_dim=32, window=window), dtype)
    q = queries(len(LENGTHS), 6, 32)
    every = list(range(len(LENGTHS)))
    options = {"soft_cap": 20.0, "sinks": np.arange(6, dtype=np.float32)}
    whole = np.asarray(decoded(case, q, every, LENGTHS, **options))
    assert np.isfinite(whole).all()
    for rows in (every[::-1], [3, 7], [5], [7]):
        part = decoded(case, q[rows], rows, [LENGTHS[row] for row in rows], **options)
        np.testing.assert_array_equal(part, whole[rows])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("window", [None, 40, 600])
def test_a_prompt_has_the_same_bits_in_any_chunks_and_as_decodes(
    dtype: str, window: int | None
) -> None:
    """Tables begin where the tile's first query looks, as the engine's do."""
    length = 600
    case = as_type(random_case([length], head_dim=32), dtype)
    case.window = window
    q = queries(length, 4, 32)
    want = np.full((length, 4, 32), np.nan, np.float32)
    for tile, begin in ((32, 0), (16, 0), (1, 520)):
        tiles = (length - begin + tile - 1) // tile
        count = tiles * tile
        padded = np.zeros((count, 4, 32), np.float32)
        padded[: length - begin] = q[begin:]
        positions = np.where(np.arange(count) + begin < length, np.arange(count) + begin, -1)
        found = np.asarray(
            prefilled(
                case, padded.reshape(tiles, tile, 4, 32), [0] * tiles,
                positions.reshape(tiles, tile),
            )
        )[: length - begin]  # fmt: skip
        if begin == 0 and np.isnan(want).all():
            want = found
        np.testing.assert_array_equal(found, want[begin:])
    one = decoded(case, q[-1:], [0], [length])
    np.testing.assert_array_equal(np.asarray(one)[0], want[-1])


@pytest.mark.parametrize(
    ("dtype", "dim", "group", "window"),
    [
        ("bfloat16", 80, 3, None), ("bfloat16", 96, 7, 50), ("bfloat16", 112, 16, None),
        ("float32", 32, 1, None), ("float32", 80, 6, 70), ("float16", 256, 2, None),
    ],
)  # fmt: skip
def test_each_query_of_a_prompt_has_the_bits_of_a_decode(
    dtype: str, dim: int, group: int, window: int | None
) -> None:
    """In tiles of 32, as rows that share all their pages, and as one row alone."""
    length, heads = 140, 2 * group
    case = as_type(random_case([length], head_dim=dim), dtype)
    case.window = window
    q = queries(5 * TILE, heads, dim)
    options = {"soft_cap": 15.0, "sinks": np.linspace(-1, 2, heads, dtype=np.float32)}
    positions = np.where(np.arange(5 * TILE) < length, np.arange(5 * TILE), -1)
    tiles = q.reshape(5, TILE, heads, dim), [0] * 5, positions.reshape(5, TILE)
    whole = np.asarray(prefilled(case, *tiles, **options))[:length]
    assert np.isfinite(whole).all()
    lengths = list(range(1, length + 1))
    together = np.asarray(decoded(case, q[:length], [0] * length, lengths, **options))
    np.testing.assert_array_equal(together, whole)
    for place in (0, 63, 64, 101, 139):
        alone = decoded(case, q[place : place + 1], [0], [place + 1], **options)
        np.testing.assert_array_equal(np.asarray(alone)[0], whole[place])


def test_what_a_table_has_beyond_a_sequence_is_never_read() -> None:
    lengths = [9, 70, 520]
    case = random_case(lengths)
    q = queries(3, 4, 8)
    expected = np.asarray(decoded(case, q, [0, 1, 2], lengths))
    for row, length in enumerate(lengths):
        case.tables[row, -(-length // BLOCK_SIZE) :] = np.resize([-1, 2**31 - 1, -(2**31)], 999)[
            : case.tables.shape[1] - -(-length // BLOCK_SIZE)
        ]
    np.testing.assert_array_equal(decoded(case, q, [0, 1, 2], lengths), expected)


@pytest.mark.slow
def test_one_thread_gives_the_bits_of_all_threads() -> None:
    """A process that may use one core has a pool of one thread."""
    program = """
import os, sys, hashlib
if sys.argv[1] == "one":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import numpy as np
from tests.pallas_kernels.cpu.test_attention_bits import *
case = as_type(random_case(LENGTHS, head_dim=32), "bfloat16")
found = decoded(case, queries(len(LENGTHS), 6, 32), list(range(len(LENGTHS))), LENGTHS)
print(hashlib.sha256(np.asarray(found).tobytes()).hexdigest())
"""
    digests = {
        subprocess.run(
            [sys.executable, "-c", program, threads],
            capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        ).stdout.split()[-1]
        for threads in ("one", "all")
    }  # fmt: skip
    assert len(digests) == 1


def test_rows_that_share_leading_pages_have_the_bits_of_their_own_pages() -> None:
    """Three rows with one prefix: once in shared blocks, once in copies of them."""
    shared, lengths = 520, [530, 600, 523]
    case = as_type(random_case(lengths, head_dim=32), "bfloat16")
    pages = shared // BLOCK_SIZE
    for row in (1, 2):
        for page in range(pages):
            own, first = case.tables[row, page], case.tables[0, page]
            case.cache[:, :, own] = case.cache[:, :, first]
    q = queries(3, 6, 32)
    copies = decoded(case, q, [0, 1, 2], lengths)
    case.tables[1:, :pages] = case.tables[0, :pages]
    np.testing.assert_array_equal(decoded(case, q, [0, 1, 2], lengths), copies)


@pytest.mark.parametrize("block", [-1, 2**31 - 1, None])
def test_a_table_with_a_block_that_does_not_exist_is_refused(block: int | None) -> None:
    case = random_case([20])
    case.tables[0, 1] = case.cache.shape[2] if block is None else block
    with pytest.raises(Exception, match="names a block that the cache does not have"):
        decoded(case, queries(1, 2, 8), [0], [20]).block_until_ready()


def test_a_table_that_is_too_short_or_begins_within_a_block_is_refused() -> None:
    case = random_case([20])
    with pytest.raises(Exception, match="beyond its block table"):
        decoded(case, queries(1, 2, 8), [0], [21]).block_until_ready()
    case.starts[0] = BLOCK_SIZE - 1
    with pytest.raises(Exception, match="multiple of the block size"):
        decoded(case, queries(1, 2, 8), [0], [20]).block_until_ready()


def test_not_a_number_in_a_query_stays_in_its_own_row() -> None:
    case = random_case([20, 30])
    q = queries(2, 4, 8)
    q[0] = np.nan
    found = np.asarray(decoded(case, q, [0, 1], [20, 30]))
    assert np.isnan(found[0]).all()
    assert np.isfinite(found[1]).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_reach_only_the_queries_that_see_them(
    dtype: str, bad: float
) -> None:
    """A prompt's earlier tokens, and another sequence that shares its first pages, are as ever."""
    length, place = 2 * BLOCK_SIZE + 7, 2 * BLOCK_SIZE + 3
    case = random_case([length, length])
    case.tables[1, :2] = case.tables[0, :2]
    case = as_type(case, dtype)
    q = queries(2 * TILE * 2, 4, 8).reshape(2, 2 * TILE, 4, 8)
    positions = np.where(np.arange(2 * TILE) < length, np.arange(2 * TILE), -1)
    tiles = q.reshape(4, TILE, 4, 8), [0, 0, 1, 1], np.tile(positions, 2).reshape(4, TILE)
    expected = np.asarray(prefilled(case, *tiles)).reshape(2, 2 * TILE, 4, 8)
    block = case.tables[0, place // BLOCK_SIZE]
    case.cache[case.layer, 1, block, place % BLOCK_SIZE] = bad
    found = np.asarray(prefilled(case, *tiles)).reshape(expected.shape)
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_array_equal(found[0, :place], expected[0, :place])
    assert not np.isfinite(found[0, place:length]).any()
