"""What FlashAttention-4's kernels are given means what prefill attention is asked for.

There is no interpreter for them: numpy stands in for the kernel, from the same arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import metadata
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import choice
from pallas_kernels.cache_write import rotate_and_write
from pallas_kernels.fa4 import rules
from pallas_kernels.fa4.rules import PrefillCall, refused
from pallas_kernels.mixed_attention import mixed_attention
from pallas_kernels.prefill_attention import fa4, prefill_attention
from tests.compiled import compiled
from tests.pallas_kernels.implementations import TRITON
from tests.pallas_kernels.paged_cases import BLOCK_SIZE, attend, random_case

HEADS, KV_HEADS, HEAD_DIM, TILE = 4, 2, 64, 4
USUAL = PrefillCall(jnp.dtype(jnp.bfloat16), HEAD_DIM, 128, None, has_ends=False)
pytestmark = list(TRITON.marks)


class Sequences(NamedTuple):
    starts: Any
    queries: Any
    keys: Any
    tables: Any


def kernel_in_numpy(
    q: np.ndarray, cache: np.ndarray, sequences: Sequences, into: tuple[np.ndarray, ...],
    window: int | None, scale: float,
) -> np.ndarray:  # fmt: skip
    """The kernel's contract: chunks end with their last key; all else of the output is NaN. Values
    of keys that a query does not see, to the end of a block, are multiplied by 0."""
    out = np.array(into[0] if into else np.full(q.shape, np.nan), np.float32)
    blocks, block_size = cache.shape[2:4]
    flat = np.asarray(cache, np.float32).reshape(-1, block_size, KV_HEADS, HEAD_DIM)
    for start, count, keys, table in zip(*sequences, strict=False):
        pages = table[: -(-keys // block_size)]
        of_row = [np.concatenate(flat[pages + plane * blocks]) for plane in (0, 1)] if count else []
        for index in range(count):
            query, position = np.asarray(q[start + index], np.float32), keys - count + index
            with np.errstate(invalid="ignore"):
                hidden = np.sum(0 * of_row[1][position + 1 :], axis=0)
            hidden = hidden.repeat(HEADS // KV_HEADS, 0)
            out[start + index] = hidden + attend(query, *of_row, position, window, scale=scale)
    return out.astype(q.dtype)


@pytest.fixture
def in_numpy(monkeypatch: pytest.MonkeyPatch) -> list[Sequences]:
    """Put numpy in the kernel's place; the list is filled with what it is given."""
    seen: list[Sequences] = []

    def attended(
        q: Any, cache: Any, sequences: Sequences, sinks: None, into: tuple[Any, ...], *,
        head_dim: int, window: int | None, scale: float,
    ) -> tuple[Any, Any]:  # fmt: skip
        def on_host(q: Any, cache: Any, sequences: Sequences, into: tuple[Any, ...]) -> Any:
            seen.append(Sequences(*map(np.asarray, sequences)))
            arrays = np.asarray(q), np.asarray(cache), seen[-1], tuple(map(np.asarray, into))
            return kernel_in_numpy(*arrays, window, scale)

        shape = jax.ShapeDtypeStruct(q.shape, q.dtype)
        out = jax.pure_callback(on_host, shape, q, cache, sequences, into)
        return out, jnp.zeros(q.shape[:2])

    module = ModuleType("pallas_kernels.fa4.call")
    vars(module).update(Sequences=Sequences, attend=attended)
    monkeypatch.setitem(sys.modules, "pallas_kernels.fa4.call", module)
    return seen


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks and blocks of a few tokens count as long and whole."""
    monkeypatch.setattr(fa4, "LONG", 8)
    monkeypatch.setattr(rules, "BULK_BLOCK", BLOCK_SIZE)


def run_prefill(
    chunks: list[tuple[int, int]], implementation: Callable[..., Any], window: int | None,
    joined: int | None = None,
) -> np.ndarray:  # fmt: skip
    """Chunks (tokens of the row so far, new ones) in tiles, with one tile of padding behind."""
    ends = [end for end, _ in chunks]
    most = max(new for _, new in chunks)
    case = random_case(ends, kv_heads=KV_HEADS, head_dim=HEAD_DIM, window=window, queries=most)
    tables, starts, positions, firsts = [], [], [], []
    for row, (end, new) in enumerate(chunks):
        tiles = -(-new // TILE)
        firsts += range(len(tables), len(tables) + tiles, joined or 1)
        tables += [case.tables[row]] * tiles
        starts += [case.starts[row]] * tiles
        positions += [*range(end - new, end), *[-1] * (tiles * TILE - new)]
    tables, starts = [*tables, case.tables[0] * 0], [*starts, 0]
    positions += [-1] * TILE
    firsts += [len(tables) - 1, len(tables), len(tables)]  # padding, and an empty run
    q = np.random.default_rng(3).normal(size=(len(positions), HEADS, HEAD_DIM))
    given = (
        jnp.asarray(q, jnp.bfloat16), jnp.asarray(np.nan_to_num(case.cache), jnp.bfloat16),
        *(np.asarray(one, np.int32) for one in (np.array(tables), starts, positions, firsts)),
    )  # fmt: skip

    @jax.jit
    def run(q: Any, cache: Any, tables: Any, starts: Any, positions: Any, firsts: Any) -> Any:
        return implementation(
            q, cache, case.layer, tables, starts, positions, head_dim=HEAD_DIM, window=window,
            scale=0.2, soft_cap=None, sinks=None, dtype=jnp.dtype(jnp.float32),
            **({"runs": firsts, "joined": joined} if joined else {}),
        )  # fmt: skip

    out, _ = run(*given)
    return np.asarray(out)


def in_xla(*arrays: Any, runs: Any = None, joined: int = 1, **options: Any) -> Any:
    return prefill_attention(*arrays, return_lse=True, implementation="xla", **options)


def queries_of(given: list[Sequences]) -> list[int]:
    return [int(count) for count in given[0].queries if count]


CHUNKS = [(5, 5), (16, 12), (40, 3), (9, 9), (30, 17)]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("joined", [None, 2])
def test_long_chunks_and_short_ones_equal_xla(
    window: int | None, joined: int | None, in_numpy: list[Sequences]
) -> None:
    found = run_prefill(CHUNKS, fa4.prefill_attention_fa4, window, joined)
    expected = run_prefill(CHUNKS, in_xla, window)
    np.testing.assert_allclose(found, expected, atol=2e-2)
    assert (found[-TILE:] == 0).all()
    assert queries_of(in_numpy) == [12, 9, 17]
    assert len(in_numpy[0].queries) == found.shape[0] // fa4.LONG, "no more programs than needed"


@pytest.mark.usefixtures("small")
def test_prompts_that_follow_each_other_are_not_joined(in_numpy: list[Sequences]) -> None:
    """A row that begins at the position after the end of the one before it has other blocks."""
    run_prefill([(8, 8), (16, 8)], fa4.prefill_attention_fa4, None)
    assert queries_of(in_numpy) == [8, 8]


def test_short_steps_are_all_of_triton(in_numpy: list[Sequences]) -> None:
    found = run_prefill(CHUNKS, fa4.prefill_attention_fa4, None)
    np.testing.assert_allclose(found, run_prefill(CHUNKS, in_xla, None), atol=2e-2)
    assert in_numpy == []


REFUSED = [
    USUAL._replace(cache_dtype=np.dtype(np.int8)), USUAL._replace(cache_dtype=np.dtype(np.uint8)),
    USUAL._replace(cache_dtype=np.dtype(np.float32)), USUAL._replace(head_dim=256),
    USUAL._replace(block_size=16), USUAL._replace(soft_cap=30.0), USUAL._replace(has_ends=True),
]  # fmt: skip


def test_every_rule_refuses_something() -> None:
    assert refused(USUAL) is None
    assert {refused(asked) for asked in REFUSED} == set(rules.RULES)


def test_what_a_rule_refuses_goes_to_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(fa4, "prefill_attention_triton", lambda *_, **more: given.update(more))
    fa4.prefill_attention_fa4(
        jnp.ones((4, HEADS, HEAD_DIM)), jnp.zeros((1, 2, 4, 4, 128), jnp.bfloat16), 0,
        jnp.zeros((1, 1), jnp.int32), jnp.zeros(1, jnp.int32), jnp.arange(4), head_dim=HEAD_DIM,
        window=5, scale=0.5, soft_cap=3.0, sinks=None, dtype=jnp.dtype(jnp.bfloat16), joined=2,
    )  # fmt: skip
    assert (given["soft_cap"], given["window"], given["joined"]) == (3.0, 5, 2)


def test_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = dict(rules.PACKAGES)
    monkeypatch.setattr(rules.importlib.metadata, "version", versions.__getitem__)
    assert rules.missing() is None
    versions["fa4-jax"] = "9.0"
    assert rules.missing() == "fa4-jax is 9.0; expected 0.1.0. Install jengine[fa4]."

    def absent(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(rules.importlib.metadata, "version", absent)
    assert "Install jengine[fa4], with Python 3.12" in str(rules.missing())


@pytest.mark.usefixtures("small", "in_numpy")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("writer", ["xla", TRITON])
def test_what_a_request_leaves_in_a_block_does_not_reach_the_next(bad: float, writer: str) -> None:
    """Unless `finite` is left out. The request itself has NaN from there on."""
    length, tokens = 9, 12
    qkv = np.random.default_rng(5).normal(size=(tokens, KV_HEADS, 4, HEAD_DIM)).astype(np.float32)
    sick = qkv.copy()
    sick[10, 1, -1, 3] = bad
    empty = jnp.zeros((1, 2, 4, BLOCK_SIZE, KV_HEADS * HEAD_DIM), jnp.bfloat16)
    slots = np.arange(BLOCK_SIZE, BLOCK_SIZE + tokens, dtype=np.int32)

    def written(cache: Any, qkv: np.ndarray, finite: bool) -> tuple[Any, Any]:
        return compiled(rotate_and_write)(
            cache, 0, qkv, slots[: len(qkv)], finite=finite, implementation=writer
        )

    def attended(q: Any, cache: Any, run: Callable[..., Any]) -> np.ndarray:
        padded = -(-len(q) // TILE) * TILE
        positions = np.where(np.arange(padded) < len(q), np.arange(padded), -1)
        tiles = padded // TILE
        out, _ = jax.jit(lambda q, cache: run(
            jnp.pad(q, ((0, padded - len(q)), (0, 0), (0, 0))), cache, 0,
            jnp.tile(jnp.arange(1, 4), (tiles, 1)), jnp.zeros(tiles, jnp.int32),
            jnp.asarray(positions, jnp.int32), head_dim=HEAD_DIM, window=None, scale=None,
            soft_cap=None, sinks=None, dtype=jnp.dtype(jnp.float32),
        ))(q, cache)  # fmt: skip
        return np.asarray(out)[: len(q)]

    expected = attended(*written(empty, qkv[:length], finite=False), in_xla)
    for finite in (True, False):
        q, left = written(empty, sick, finite=finite)
        own = np.isfinite(attended(q, left, in_xla)).all((1, 2))
        assert not own[10:].any() and own[:10].all() >= finite
        found = attended(*written(left, qkv[:length], finite), fa4.prefill_attention_fa4)
        assert np.isfinite(found).all() == finite
        if finite:
            np.testing.assert_allclose(found, expected, atol=2e-2)


@pytest.mark.usefixtures("small")
def test_mixed_steps_take_it_for_their_prompts(
    in_numpy: list[Sequences], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decodes and a short prompt by Triton, a long one by this, in one array; all as in XLA."""
    monkeypatch.setattr(choice, "missing", lambda: None)
    case = random_case([7, 10, 3], kv_heads=KV_HEADS, head_dim=HEAD_DIM)
    tables = jnp.asarray(case.tables[[0, 1, 1, 1, 2]])
    positions = jnp.asarray([6, *range(1, 10), -1, -1, -1, 0, 1, 2, -1], jnp.int32)
    q = np.random.default_rng(5).normal(size=(len(positions), HEADS, HEAD_DIM))
    cache = jnp.asarray(np.nan_to_num(case.cache), jnp.bfloat16)

    def run(**options: Any) -> np.ndarray:
        return np.asarray(
            mixed_attention(
                jnp.asarray(q, jnp.bfloat16), cache, case.layer, tables, jnp.zeros(5, jnp.int32),
                positions, rows=1, head_dim=HEAD_DIM, dtype=jnp.bfloat16, **options,
            ),
            np.float32,
        )  # fmt: skip

    found = run(implementation="triton", prompts="fa4")
    np.testing.assert_allclose(found, run(implementation="xla"), atol=2e-2)
    assert queries_of(in_numpy) == [9]
