"""Threshold searches against stable sorts: top-k exactly, top-p up to float32 sums."""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jengine.sampling.row_operations import row_operations
from tests.pallas_kernels.implementations import CPU
from tests.sampling.oracle import descending, min_p_set, top_k_set, top_p_lengths

ROWS = 4
P_VALUES = [0.0, 1e-9, 0.05, 0.25, 0.5, 0.9, 0.999, 1 - 2.0**-24, 1.0]


@pytest.fixture(params=["xla", CPU], scope="module", autouse=True)
def cut_logits(request: pytest.FixtureRequest) -> Any:
    global jit_cut
    jit_cut = jax.jit(row_operations(request.param).cut_logits)


def run(
    logits: np.ndarray,
    k: list[int] | int = 0,
    p: list[float] | float = 1.0,
    min_p: list[float] | float = 0.0,
) -> np.ndarray:
    """Kept tokens bool[S, V]; checks that what is kept is kept bit for bit."""

    def each(value: object, dtype: type) -> np.ndarray:
        return np.broadcast_to(np.asarray(value, dtype), logits.shape[:1]).copy()

    limits = each(k, np.int32), each(p, np.float32), each(min_p, np.float32)
    out = np.asarray(jit_cut(logits, *limits))
    kept = out > -np.inf
    assert np.array_equal(out[kept].view(np.int32), logits[kept].view(np.int32))
    return kept


def kept_ids(row: list[float], **limits: float) -> list[int]:
    """One short row, filled up to a shape that the property tests compile anyway."""
    logits = np.full((ROWS, 7), -np.inf, np.float32)
    logits[:, : len(row)] = row
    return np.flatnonzero(run(logits, **limits)[0]).tolist()


def check_top_p(row: np.ndarray, kept: np.ndarray, p: float) -> None:
    shortest, longest = top_p_lengths(row, p)
    count = int(kept.sum())
    assert shortest <= count <= longest
    assert set(np.flatnonzero(kept)) == set(descending(row)[:count])


@st.composite
def logit_rows(draw: st.DrawFn) -> np.ndarray:
    """f32[4, V]: many ties, wide and narrow ranges, zeros of both signs, -inf entries."""
    vocab = draw(st.sampled_from([1, 7, 130, 3001]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = random.normal(size=(ROWS, vocab)) * draw(st.sampled_from([0.0, 1e-3, 1.0, 8.0, 300.0]))
    if draw(st.booleans()):
        rows = np.round(rows * 2) / 2
    rows[random.random(rows.shape) < draw(st.sampled_from([0.0, 0.1, 0.8]))] = -np.inf
    rows[:, random.integers(vocab)] = random.choice([0.0, -0.0, 1.5])
    return rows.astype(np.float32)


@settings(deadline=None, max_examples=60)
@given(logit_rows(), st.lists(st.integers(-1, 3002), min_size=ROWS, max_size=ROWS), st.data())
def test_top_k_keeps_exactly_k_like_a_stable_sort(
    logits: np.ndarray, ks: list[int], data: st.DataObject
) -> None:
    ks[0] = data.draw(st.integers(1, logits.shape[1]))
    ks[1] = min(ks[1], 3)
    kept = run(logits, k=ks)
    for row, k, got in zip(logits, ks, kept, strict=True):
        assert np.array_equal(got, top_k_set(row, k))


@settings(deadline=None, max_examples=60)
@given(logit_rows(), st.lists(st.sampled_from(P_VALUES), min_size=ROWS, max_size=ROWS))
def test_top_p_keeps_the_shortest_run_that_reaches_p(logits: np.ndarray, ps: list[float]) -> None:
    kept = run(logits, p=ps)
    for row, p, got in zip(logits, ps, kept, strict=True):
        check_top_p(row, got, p)


@settings(deadline=None, max_examples=40)
@given(
    logit_rows(),
    st.lists(st.integers(0, 40), min_size=ROWS, max_size=ROWS),
    st.lists(st.sampled_from(P_VALUES), min_size=ROWS, max_size=ROWS),
    st.lists(st.sampled_from([0.0, 1e-3, 0.21, 1.0]), min_size=ROWS, max_size=ROWS),
)
def test_min_p_then_top_k_then_top_p(
    logits: np.ndarray, ks: list[int], ps: list[float], min_ps: list[float]
) -> None:
    kept = run(logits, k=ks, p=ps, min_p=min_ps)
    for row, k, p, min_p, got in zip(logits, ks, ps, min_ps, kept, strict=True):
        row = np.where(min_p_set(row, min_p), row, -np.inf)
        row = np.where(top_k_set(row, k), row, -np.inf)
        check_top_p(row, got, p)


def test_top_p_looks_at_the_distribution_after_top_k() -> None:
    # Of the best two alone the first has 0.57 of the mass.
    row = np.log([0.1, 0.4, 0.2, 0.3]).tolist()
    assert kept_ids(row, p=0.5) == [1, 3]
    assert kept_ids(row, p=0.5, k=2) == [1]


def test_top_p_counts_only_the_ties_that_top_k_left() -> None:
    # Three of five equal tokens stay, each a third of the mass.
    assert kept_ids([1, 1, 1, 1, 1], k=3, p=0.6) == [0, 1]
    assert kept_ids([1, 1, 1, 1, 1], k=3, p=0.7) == [0, 1, 2]
    assert kept_ids([1, 1, 2, 1, 1], k=2, p=0.99) == [0, 2]


def test_top_p_close_to_one_leaves_what_top_k_cut() -> None:
    """Rounding of the target must not bring a tie back."""
    for value in np.linspace(-3, -0.01, 40):
        assert kept_ids([0, *[value] * 6], k=4, p=1 - 2.0**-24) == [0, 1, 2, 3]


def test_huge_negative_logits_are_not_minus_infinity() -> None:
    lowest = np.finfo(np.float32).min
    assert kept_ids([1, lowest, -np.inf, lowest], k=2) == [0, 1]
    assert kept_ids([1, lowest, -np.inf, lowest], k=4) == [0, 1, 3]


def test_ties_at_the_threshold_go_to_the_lowest_indices() -> None:
    row = [1, 2, 2, 0, 2, 2, -0.0]
    assert kept_ids(row, k=3) == [1, 2, 4]
    assert kept_ids(row, k=5) == [0, 1, 2, 4, 5]
    assert kept_ids(row, k=6) == [0, 1, 2, 3, 4, 5]
    assert kept_ids([-0.0, 0.0, -0.0, 0.0], p=0.75) == [0, 1, 2]


def test_min_p_is_relative_to_the_best_token() -> None:
    row = (np.log([0.5, 0.24, 0.25, 0.01]) + 7).tolist()
    assert kept_ids(row, min_p=0.49) == [0, 2]
    assert kept_ids(row, min_p=1.0) == [0]


@pytest.mark.parametrize("others", [(0, 1.0, 0.0), (2, 0.3, 0.5)])
def test_rows_do_not_depend_on_their_neighbours(others: tuple[int, float, float]) -> None:
    """Bitwise, also where a neighbour makes a search run that this row does not need."""
    logits = np.random.default_rng(3).normal(size=(4, 3001)).astype(np.float32)
    settings_of = [(0, 1.0, 0.0), (20, 0.7, 0.01), (2000, 0.95, 0.0), (0, 1.0, 0.2)]
    together = run(logits, *map(list, zip(*settings_of, strict=True)))
    for row, mine in enumerate(settings_of):
        mixed = [others] * 4
        mixed[row] = mine
        neighbours = np.roll(logits, 100, axis=1) * 50
        neighbours[row] = logits[row]
        alone = run(neighbours, *map(list, zip(*mixed, strict=True)))
        assert np.array_equal(alone[row], together[row])
    assert together[0].all()
