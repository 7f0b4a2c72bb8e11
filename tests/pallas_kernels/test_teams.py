"""Rows that share leading blocks: who is in a team, what it reads once, and results as ever."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import tuning
from pallas_kernels.decode_attention import context_parts, decode_attention, teams
from pallas_kernels.decode_attention.context_parts import Split, part_list
from pallas_kernels.decode_attention.teams import Teams, teams_of
from tests.marks import slow
from tests.pallas_kernels.implementations import TRITON
from tests.pallas_kernels.paged_cases import BLOCK_SIZE, Case, random_case
from tests.pallas_kernels.test_decode_parts import SMALL, lists_of

Prefixes = list[tuple[list[int], int]]


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    """Sizes for which few tokens make teams and parts."""
    table = {**tuning.table("decode_attention"), "splits": SMALL}
    jax.clear_caches()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context_parts, "_sizes", lambda: SMALL)
        patch.setattr(context_parts, "filling", int)
        patch.setattr(teams, "table", lambda _: table)
        yield
    jax.clear_caches()


def case_of(lengths: list[int], prefixes: Prefixes, **options: Any) -> Case:
    """Rows of which some have their first `shared` tokens in the first one's blocks."""
    case = random_case(lengths, **options)
    for rows, shared in prefixes:
        first, pages = rows[0], shared // BLOCK_SIZE
        for row in rows[1:]:
            own = case.tables[row, :pages].copy()
            case.tables[row, :pages] = case.tables[first, :pages]
            case.cache[case.layer][:, own] = np.nan  # nobody may read what nobody refers to
    return case


def teams_in(case: Case, lengths: list[int], most: int) -> Teams:
    counts = jnp.asarray(lengths, jnp.int32) - case.starts
    find = jax.jit(partial(teams_of, block_size=BLOCK_SIZE, most=most))
    found = find(jnp.asarray(case.tables), jnp.asarray(case.starts), counts)
    return Teams(*map(np.asarray, found))


@pytest.mark.slow
def test_neighbours_that_share_enough_are_a_team() -> None:
    lengths = [70, 90, 40, 100, 100, 80, 80, 0]
    prefixes = [([0, 1], 64), ([3, 4], 28), ([5, 6], 80)]
    found = teams_in(case_of(lengths, prefixes), lengths, 4)
    assert found.leaders.tolist() == [0, 0, 2, 3, 4, 5, 5, 7]
    assert found.sizes.tolist() == [2, 0, 1, 1, 1, 2, 0, 1]
    # Whole chunks of 16 tokens, and the last token, at least, is a row's own.
    assert found.shared.tolist() == [64, 0, 0, 0, 0, 64, 0, 0]


def test_long_runs_are_several_teams_and_the_shortest_row_decides() -> None:
    lengths = [100, 110, 50, 100, 120, 130, 140]
    found = teams_in(case_of(lengths, [([0, 1, 2, 3, 4, 5, 6], 96)]), lengths, 3)
    assert found.leaders.tolist() == [0, 0, 0, 3, 3, 3, 6]
    assert found.shared.tolist() == [48, 0, 0, 96, 0, 0, 0]


def test_drafts_of_a_row_are_a_team() -> None:
    """They are rows with the same table, one token longer each."""
    lengths = [60, 61, 62, 90]
    case = case_of(lengths, [])
    case.tables[1:3] = case.tables[0]
    found = teams_in(case, lengths, 4)
    assert found.leaders.tolist() == [0, 0, 0, 3]
    assert found.shared.tolist() == [48, 0, 0, 0]


@pytest.mark.parametrize("rows", [4, 30])
def test_every_row_reads_every_token_once(rows: int) -> None:
    rng = np.random.default_rng(rows)
    lengths = np.where(rng.random(rows) < 0.2, 0, rng.integers(1, 2000, rows))
    runs = np.cumsum(rng.random(rows) < 0.3)
    tables = np.where(np.arange(500) < 100, runs[:, None] + 1, 100 + np.arange(rows)[:, None])
    given = [jnp.asarray(each, jnp.int32) for each in (tables, np.zeros(rows), lengths)]
    split = Split(rows, 2, 2000, has_teams=True)

    @jax.jit
    def words(tables: Any, starts: Any, lengths: Any) -> Any:
        found = teams_of(tables, starts, lengths, block_size=4, most=4)
        return part_list(split, starts, lengths, None, found)

    fields, counts = lists_of(split, words(*given))
    assert (fields[:, 4] > 1).any(), "some parts are of teams"
    for row, length in enumerate(lengths):
        own = fields[(fields[:, 0] <= row) & (row < fields[:, 0] + fields[:, 4])]
        own = own[np.argsort(own[:, 1], kind="stable")]
        assert own[0, 1] == 0 and own[-1, 2] == length
        assert (own[1:, 1] == own[:-1, 2]).all()
        assert (own[:, 3] == np.arange(counts[row])).all(), "in order, each in its own place"


def run(case: Case, q: np.ndarray, lengths: list[int], **options: Any) -> list[np.ndarray]:
    found = decode_attention(
        jnp.asarray(q), jnp.asarray(case.cache), case.layer, jnp.asarray(case.tables),
        jnp.asarray(case.starts), jnp.asarray(lengths, jnp.int32), head_dim=case.head_dim,
        window=case.window, return_lse=True, **options,
    )  # fmt: skip
    return [np.asarray(each, np.float32) for each in found]


@pytest.mark.parametrize("implementation", [TRITON])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "soft_cap", "has_sinks", "dtype"),
    [
        (6, 1, 3.0, True, "bfloat16"),
        *slow((8, 2, None, False, "float32"), (8, 1, None, True, "float32"),
              (2, 2, None, False, "float32"), (40, 2, 2.0, False, "float32"),
              (14, 2, None, False, "bfloat16")),
    ],
)  # fmt: skip
def test_results_are_those_of_rows_alone(
    heads: int, kv_heads: int, soft_cap: float | None, has_sinks: bool, dtype: str,
    implementation: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Teams of several sizes, rows without one, drafts, padding; whichever program is last."""
    from triton.runtime.interpreter import interpreter_builder

    lengths = [70, 90, 150, 75, 40, 100, 101, 102, 9, 0]
    case = case_of(lengths, [([0, 1, 2, 3], 64), ([5, 6, 7], 100)], kv_heads=kv_heads)
    case.tables[6:8] = case.tables[5]
    for plane in (0, 1):  # the longest of these rows has written the tokens of all
        case.cache[case.layer, plane, case.tables[5, 25]] = plane + 0.5
    q = np.random.default_rng(3).normal(size=(len(lengths), heads, 8)).astype(np.float32)
    options: dict[str, Any] = {"soft_cap": soft_cap, "dtype": dtype}
    if has_sinks:
        options["sinks"] = jnp.linspace(-1.0, 2.0, heads)
    expected = run(case, q, lengths, implementation="xla", **options)
    options |= {"implementation": implementation, "reads_together": True}
    *found, counters = run(case, q, lengths, **options)
    assert not counters.any(), "the next call begins with these"
    close = {"atol": 2e-5} if dtype == "float32" else {"rtol": 2e-2, "atol": 1e-2}
    for mine, reference in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, reference, **close)
    in_order = interpreter_builder.set_grid_idx
    split = Split(len(lengths), kv_heads, case.tables.shape[1] * BLOCK_SIZE, has_teams=True)
    last = split.slots * kv_heads - 1
    monkeypatch.setattr(
        interpreter_builder, "set_grid_idx", lambda x, y, z: in_order(last - x, y, z)
    )
    for mine, again in zip(found, run(case, q, lengths, **options)[:2], strict=True):
        np.testing.assert_array_equal(mine, again)
