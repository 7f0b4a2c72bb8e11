"""Long chunks over a cache of codes read copies of it: what is copied, and what attention makes of
it."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.cache_write import write_cache
from pallas_kernels.layout import FP8_BITS, INT8, cache_shape, heads_of
from pallas_kernels.prefill_attention import prefill_attention
from tests.compiled import compiled
from tests.pallas_kernels.implementations import TRITON

HEADS, KV_HEADS, DIM, BLOCK, TILE, PAGES = 4, 2, 20, 8, 4, 8
KINDS = {"int8": INT8, "fp8": FP8_BITS}
# Tokens of a row so far, and new ones: two are long, of which one follows a cached prefix.
CHUNKS = [(5, 5), (60, 12), (40, 3), (19, 19)]
pytestmark = list(TRITON.marks)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = importlib.import_module("pallas_kernels.prefill_attention.copies")
    monkeypatch.setattr(module, "LONG", 8)
    return module


@functools.cache
def written(kind: str) -> tuple[jnp.ndarray, np.ndarray]:
    """A cache of codes and a table for each chunk; scales of unused slots are NaN."""
    rng = np.random.default_rng(0)
    blocks = len(CHUNKS) * PAGES
    tables = rng.permutation(blocks).reshape(-1, PAGES).astype(np.int32)
    slots = np.concatenate([
        tables[row, at // BLOCK] * BLOCK + at % BLOCK
        for row, (count, _) in enumerate(CHUNKS)
        for at in [np.arange(count)]
    ])  # fmt: skip
    k, v = (jnp.asarray(rng.normal(size=(slots.size, KV_HEADS, DIM)), jnp.float32) for _ in "kv")
    empty = jnp.full(cache_shape(2, blocks, BLOCK, KV_HEADS, DIM, KINDS[kind]), -1, KINDS[kind])
    write = compiled(write_cache)
    return write(empty, 1, k, v, slots.astype(np.int32), implementation="xla"), tables


def tiles(tables: np.ndarray, joined: int | None) -> dict[str, jnp.ndarray]:
    """The chunks in tiles, with one of padding behind, and runs of them."""
    of_tile, positions, firsts = [], [], []
    for table, (end, new) in zip(tables, CHUNKS, strict=True):
        count = -(-new // TILE)
        firsts += range(len(of_tile), len(of_tile) + count, joined or 1)
        of_tile += [table] * count
        positions += [*range(end - new, end), *[-1] * (count * TILE - new)]
    firsts += [len(of_tile), len(of_tile) + 1, len(of_tile) + 1]  # padding, and an empty run
    of_tile.append(tables[0] * 0)
    given = {"tables": np.array(of_tile), "starts": np.zeros(len(of_tile)),
             "positions": np.array([*positions, *[-1] * TILE])}  # fmt: skip
    if joined:
        given["runs"] = np.array(firsts)
    return {name: jnp.asarray(value, jnp.int32) for name, value in given.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_has_what_the_codes_stand_for(kind: str, copies: ModuleType) -> None:
    cache, _ = written(kind)
    sources = np.array([3, -1, 7, 0, 3], np.int32)
    made = jax.jit(lambda cache, sources: copies.copied(cache, 1, sources, DIM))(cache, sources)
    made, cache = np.asarray(made), np.asarray(cache)
    assert made.shape == (1, 2, 5, BLOCK, KV_HEADS * DIM) and made.dtype == jnp.bfloat16
    for plane in (0, 1):
        of_plane = cache[1, plane].reshape(1, cache.shape[2], -1)
        heads = np.asarray(compiled(heads_of)(of_plane, BLOCK, DIM))[0]
        expected = heads.astype(jnp.bfloat16).astype(np.float32)
        for page, source in enumerate(sources):
            if source >= 0:
                found = made[0, plane, page].reshape(expected.shape[1:]).astype(np.float32)
                np.testing.assert_array_equal(found, expected[source])


@pytest.mark.parametrize(("kind", "joined"), [("fp8", None), ("fp8", 2), ("int8", 2)])
def test_attention_with_copies_equals_xla(
    kind: str, joined: int | None, copies: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, tables = written(kind)
    given = tiles(tables, joined)
    q = np.random.default_rng(1).normal(size=(given["positions"].size, HEADS, DIM))
    options: dict[str, Any] = {"head_dim": DIM, "return_lse": True}
    arrays = jnp.asarray(q, jnp.float32), cache, 1
    expected, _ = compiled(prefill_attention)(*arrays, **given, **options, implementation="xla")
    module = importlib.import_module("pallas_kernels.prefill_attention.triton")
    read: list[np.ndarray] = []
    attend = module.attend_tiles

    def seen(*arrays: Any, **more: Any) -> Any:
        read.append(np.asarray(arrays[5]))
        return attend(*arrays, **more)

    monkeypatch.setattr(module, "attend_tiles", seen)
    runs = {"runs": given.pop("runs"), "joined": joined} if joined else {}
    found, lse = module.prefill_attention_triton(
        *arrays, *given.values(), head_dim=DIM, window=None, scale=None, soft_cap=None, sinks=None,
        dtype=jnp.dtype(jnp.float32), **runs,
    )  # fmt: skip
    np.testing.assert_allclose(found, expected, rtol=2e-2, atol=2e-2)
    codes, plain = [int((one >= 0).sum()) for one in read]
    assert (codes, plain) == (5 + 3, 12 + 19)
    assert (np.asarray(found)[-TILE:] == 0).all() and (np.asarray(lse)[-TILE:] == -np.inf).all()


@pytest.mark.parametrize(("room", "copied"), [(8, 12), (10, 12), (11, 31), (64, 31), (7, 0)])
def test_chunks_without_room_are_read_as_codes(
    room: int, copied: int, copies: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The long chunks take eight pages and three."""
    cache, tables = written("fp8")
    given = tiles(tables, 2)
    page_bytes = 2 * BLOCK * KV_HEADS * DIM * 2
    monkeypatch.setattr(copies, "MOST_BYTES", room * page_bytes)
    found = jax.jit(
        lambda cache, tables, starts, positions, runs: copies.copies(
            cache, 1, tables, starts, positions, runs, DIM
        )
    )(cache, *given.values())
    inside, outside = np.asarray(found.inside), np.asarray(found.outside)
    assert found.cache.shape[2] == min(room, 4 * given["positions"].size // BLOCK)
    assert (inside >= 0).sum() == copied
    np.testing.assert_array_equal(np.maximum(inside, outside), given["positions"])
    left = importlib.import_module("pallas_kernels.prefill_attention.kernels").ELSEWHERE.value
    assert ((inside == left) ^ (outside == left)).all()


def test_plain_caches_and_steps_without_long_chunks_have_no_copies(copies: ModuleType) -> None:
    cache, tables = written("fp8")
    given = tiles(tables, None)
    few = {name: value[:1] for name, value in given.items()} | {"positions": jnp.arange(TILE)}
    of_step = [(cache, few), (cache[..., :-2].astype(jnp.bfloat16), given)]
    for one, arrays in of_step:
        assert copies.copies(one, 1, *arrays.values(), None, DIM) is None
