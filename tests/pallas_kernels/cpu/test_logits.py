"""Sums over rows of logits, and cuts: right, and with the same bits in any batch."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jengine.sampling.filters import cut_logits as cut_logits_xla
from pallas_kernels.choice import cpu_problem
from pallas_kernels.cpu.logits import cut_logits, softmax_parts

pytestmark = pytest.mark.skipif(bool(cpu_problem()), reason=str(cpu_problem()))
ROWS = 9


def logits_of(width: int) -> np.ndarray:
    generator = np.random.default_rng(width)
    rows = (generator.normal(size=(ROWS, width)) * 5).astype(np.float32)
    rows[2, generator.random(width) < 0.5] = -np.inf
    rows[:, 0] = generator.normal(size=ROWS)
    return rows


@pytest.mark.parametrize("width", [1, 3, 16, 97, 4099])
def test_parts_of_a_softmax(width: int) -> None:
    rows = logits_of(width)
    highest, total = map(np.asarray, jax.jit(softmax_parts)(rows))
    assert np.array_equal(highest, rows.max(axis=1))
    exact = np.exp(rows.astype(np.float64) - rows.max(axis=1, keepdims=True)).sum(axis=1)
    np.testing.assert_allclose(total, exact, rtol=2e-6)
    for row in range(ROWS):
        alone = softmax_parts(rows[row : row + 1])
        assert (alone[0][0], alone[1][0]) == (highest[row], total[row])


@pytest.mark.parametrize("unusable", [np.nan, np.inf])
def test_what_has_no_softmax_gives_no_number(unusable: float) -> None:
    rows = logits_of(97)
    rows[1, 50], rows[4] = unusable, -np.inf
    _, total = map(np.asarray, softmax_parts(rows))
    assert np.array_equal(np.isnan(total), [row in (1, 4) for row in range(ROWS)])


@pytest.mark.parametrize("width", [1, 3, 16, 97, 4099])
def test_cuts_are_those_of_the_sampler_and_of_a_row_alone(width: int) -> None:
    rows = logits_of(width)
    top_k = np.array([0, 1, 2, 0, 7, 5000, 0, 50, 0], np.int32)
    top_p = np.array([1, 1, 0.5, 0.9, 0.95, 0.3, 0, 0.999, 1], np.float32)
    min_p = np.array([0, 0, 0, 0, 0.01, 0, 0.2, 1e-4, 1], np.float32)
    made = np.asarray(jax.jit(cut_logits)(rows, top_k, top_p, min_p))
    assert np.array_equal(made, jax.jit(cut_logits_xla)(rows, top_k, top_p, min_p))
    for row in range(ROWS):
        one = slice(row, row + 1)
        assert np.array_equal(cut_logits(rows[one], top_k[one], top_p[one], min_p[one]), made[one])


def test_rows_that_cannot_be_used_come_back() -> None:
    rows = logits_of(97)
    rows[0, 3], rows[1], rows[2, 5] = np.nan, -np.inf, np.inf
    everything = (
        np.full(ROWS, 5, np.int32),
        np.full(ROWS, 0.9, np.float32),
        np.zeros(ROWS, np.float32),
    )
    assert cut_logits(rows, *everything).shape == rows.shape


def test_sizes_are_checked() -> None:
    rows, ones = logits_of(16), np.ones(ROWS, np.float32)
    with pytest.raises(Exception, match="a top_k for each row"):
        cut_logits(rows, np.zeros(2, np.int32), ones, ones)
    with pytest.raises(Exception, match="must be float32"):
        softmax_parts(rows.astype(np.float16))
