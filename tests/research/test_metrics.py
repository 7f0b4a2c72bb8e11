"""Errors and divergences against plain formulas, and where plain formulas would fail."""

from __future__ import annotations

import numpy as np
import pytest

from jengine.research.metrics import (
    agreement,
    centred,
    distributions,
    kl_divergence,
    quantiles,
    rank_correlation,
    total_variation,
    unit_roundoff,
    vector_errors,
)


def some_logits(seed: int, rows: int = 6, vocab: int = 50) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, vocab)) * 3


def normalizer(logits: np.ndarray) -> np.ndarray:
    return np.log(np.exp(logits).sum(-1))


def probabilities(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits - normalizer(logits)[:, None])


def test_vector_errors() -> None:
    truth = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    found = np.array([[3.0, 4.5], [0.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
    errors = vector_errors(found, truth, "float32")
    np.testing.assert_allclose(errors.relative, [0.1, np.sqrt(2), 0, np.inf])
    np.testing.assert_allclose(errors.max_abs, [0.5, 1, 0, 1])
    np.testing.assert_allclose(errors.rms, [np.sqrt(0.125), 1, 0, np.sqrt(0.5)])
    cosine = (3 * 3 + 4 * 4.5) / (5 * np.hypot(3, 4.5))
    np.testing.assert_allclose(errors.cosine[:3], [1 - cosine, 1, 0], atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_spacings_are_those_of_the_dtype(dtype: str) -> None:
    kind = np.dtype(dtype).type
    truth = np.abs(some_logits(0)).astype(kind)
    next_one = np.nextafter(truth, kind(100), dtype=kind)
    errors = vector_errors(next_one, truth, dtype)
    np.testing.assert_array_equal(errors.ulps, 1)
    assert unit_roundoff(dtype) == np.finfo(kind).eps / 2


def test_errors_of_numbers_that_are_not_finite_are_not_finite() -> None:
    errors = vector_errors(np.array([[np.nan, 1.0]]), np.array([[1.0, 1.0]]), "float32")
    assert not np.isfinite(errors.relative[0])


def test_divergences_equal_the_formulas() -> None:
    a, b = some_logits(1), some_logits(2)
    p, q = probabilities(a), probabilities(b)
    left, right = distributions(a, normalizer(a)), distributions(b, normalizer(b))
    expected = (p * np.log(p / q)).sum(-1)
    np.testing.assert_allclose(kl_divergence(left, right, whole=True), expected, rtol=1e-10)
    np.testing.assert_allclose(total_variation(left, right), np.abs(p - q).sum(-1) / 2, rtol=1e-10)


def test_small_divergences_do_not_cancel() -> None:
    """KL is half the variance of the difference, here 1e-16: below the rounding of a plain sum."""
    logits = some_logits(3)
    change = 1e-8 * some_logits(4)
    p = probabilities(logits)
    mean = (p * change).sum(-1, keepdims=True)
    expected = (p * np.square(change - mean)).sum(-1) / 2
    left = distributions(logits, normalizer(logits))
    right = left._replace(logprobs=left.logprobs + change - mean)
    np.testing.assert_allclose(kl_divergence(left, right, whole=True), expected, rtol=0.01)


def test_tokens_that_are_not_kept_count_as_one() -> None:
    a, b = some_logits(5), some_logits(6)
    kept = np.argsort(-a, -1)[:, :10]
    left, right = (distributions(np.take_along_axis(x, kept, -1), normalizer(x)) for x in (a, b))
    p, q = (
        np.concatenate([np.exp(x.logprobs), 1 - np.exp(x.logprobs).sum(-1, keepdims=True)], -1)
        for x in (left, right)
    )
    found = kl_divergence(left, right, whole=False)
    np.testing.assert_allclose(found, (p * np.log(p / q)).sum(-1), rtol=1e-9)
    whole = kl_divergence(
        distributions(a, normalizer(a)), distributions(b, normalizer(b)), whole=True
    )
    assert (found <= whole).all()


def test_agreement_counts_shared_tokens() -> None:
    a = np.array([[1, 2, 3, 4, 5], [7, 8, 9, 10, 11]])
    b = np.array([[1, 9, 2, 4, 3], [8, 7, 1, 2, 3]])
    assert agreement(a, a) == {1: 1.0, 5: 1.0}
    assert agreement(a, b) == {1: 0.5, 5: pytest.approx((4 / 5 + 2 / 5) / 2)}


def test_rank_correlation() -> None:
    logits = some_logits(7)
    np.testing.assert_allclose(rank_correlation(logits, logits), 1)
    np.testing.assert_allclose(rank_correlation(-logits, logits), -1)
    np.testing.assert_allclose(rank_correlation(3 * logits + 1, logits), 1)


def test_a_constant_does_not_count() -> None:
    logits = some_logits(8)
    np.testing.assert_allclose(centred(logits + 5), centred(logits), atol=1e-12)


def test_quantiles() -> None:
    found = quantiles(np.arange(101.0))
    assert found == {"mean": 50, "p50": 50, "p99": 99, "max": 100}
