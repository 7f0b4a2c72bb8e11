"""How far two results are apart: vectors of a layer, and distributions over the vocabulary.

In: arrays. Out: errors per position, and their summaries. Computed in float64. Must not know which
program made the arrays, nor what is good or bad.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

AGREEMENT = (1, 5, 20)
# Log-probabilities that are closer than this need care when they are subtracted.
NEAR = 0.01
# Bits of the significand behind the point, which give the spacing of a dtype's numbers.
FRACTION_BITS = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}


class VectorErrors(NamedTuple):
    """Per-position errors of vectors [positions, width]."""

    relative: np.ndarray  # |x - truth| / |truth|
    max_abs: np.ndarray
    rms: np.ndarray
    cosine: np.ndarray  # 1 - cosine of the angle between them, which does not round to zero
    ulps: np.ndarray  # median of |x - truth| in spacings of the working dtype at the truth


def unit_roundoff(dtype: str) -> float:
    """The largest relative error of rounding to a dtype."""
    return 2.0 ** -(FRACTION_BITS[dtype] + 1)


def vector_errors(found: np.ndarray, truth: np.ndarray, dtype: str) -> VectorErrors:
    truth = truth.astype(np.float64)
    found = found.astype(np.float64)
    difference = found - truth
    size = np.linalg.norm(truth, axis=-1)
    distance = np.linalg.norm(difference, axis=-1)
    relative = np.divide(distance, size, out=np.where(distance > 0, np.inf, 0.0), where=size > 0)
    # Where nothing rounds, in powers of two: |x| = m * 2^e with m in [1/2, 1).
    _, exponents = np.frexp(truth)
    spacing = np.ldexp(1.0, exponents - 1 - FRACTION_BITS[dtype])
    return VectorErrors(
        relative=relative,
        max_abs=np.abs(difference).max(-1),
        rms=np.sqrt(np.square(difference).mean(-1)),
        cosine=_cosine_distance(found, truth),
        ulps=np.median(np.abs(difference) / spacing, axis=-1),
    )


def _cosine_distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Half the squared distance of the unit vectors: 1 - cosine, without its cancellation."""
    units = []
    for vectors in (a, b):
        size = np.linalg.norm(vectors, axis=-1, keepdims=True)
        units.append(np.divide(vectors, size, out=np.zeros_like(vectors), where=size > 0))
    return np.square(units[0] - units[1]).sum(-1) / 2


def joined(parts: Sequence[VectorErrors]) -> VectorErrors:
    """Errors of several prompts, one after the other."""
    return VectorErrors(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def centred(logits: np.ndarray) -> np.ndarray:
    """Logits less their mean at each position: a constant changes no probability."""
    exact = logits.astype(np.float64)
    return exact - exact.mean(-1, keepdims=True)


class Distributions(NamedTuple):
    """Log-probabilities of the kept tokens, and the total probability of the others."""

    logprobs: np.ndarray  # [T, columns]
    rest: np.ndarray  # [T]


def distributions(logits: np.ndarray, normalizer: np.ndarray) -> Distributions:
    """From logits of some tokens and the normalizer over the whole vocabulary."""
    logprobs = logits.astype(np.float64) - normalizer.astype(np.float64)[:, None]
    return Distributions(logprobs, np.clip(1 - np.exp(logprobs).sum(-1), 0.0, 1.0))


def kl_divergence(p: Distributions, q: Distributions, *, whole: bool) -> np.ndarray:
    """KL(p || q) of each position in nats. Tokens that are not kept count as one.

    With the whole vocabulary there are no others, and what is left is rounding.
    """
    # The sum of p (log p - log q) + q - p has no negative terms, so the sum cannot cancel; where
    # the two are close, expm1 keeps the terms from doing so.
    kept_p, kept_q = np.exp(p.logprobs), np.exp(q.logprobs)
    apart = p.logprobs - q.logprobs
    near = np.clip(apart, -NEAR, NEAR)
    terms = np.where(
        np.abs(apart) < NEAR,
        kept_p * (np.expm1(-near) + near),
        kept_p * apart + kept_q - kept_p,
    )
    kept = terms.sum(-1)
    if whole:
        return np.maximum(kept, 0.0)
    tiny = np.finfo(np.float64).tiny
    rest_p, rest_q = np.maximum(p.rest, tiny), np.maximum(q.rest, tiny)
    return np.maximum(kept + rest_p * np.log(rest_p / rest_q) + rest_q - rest_p, 0.0)


def total_variation(p: Distributions, q: Distributions) -> np.ndarray:
    """Half the sum of the differences of probabilities."""
    kept = np.abs(np.exp(p.logprobs) - np.exp(q.logprobs)).sum(-1)
    return (kept + np.abs(p.rest - q.rest)) / 2


def agreement(a: np.ndarray, b: np.ndarray) -> dict[int, float]:
    """For each k: how much of the k likeliest tokens two runs share, on average."""
    found = {}
    for k in AGREEMENT:
        if k <= min(a.shape[1], b.shape[1]):
            shared = (a[:, :k, None] == b[:, None, :k]).any(-1)
            found[k] = float(shared.mean())
    return found


def rank_correlation(a: np.ndarray, b: np.ndarray, most: int = 100) -> np.ndarray:
    """Spearman's correlation over the `most` likeliest tokens of b, of each position."""
    chosen = np.argsort(-b, axis=-1, kind="stable")[:, :most]
    ranks = [
        np.argsort(np.argsort(np.take_along_axis(one, chosen, -1), -1, kind="stable"), -1)
        for one in (a, b)
    ]
    count = chosen.shape[1]
    if count < 2:
        return np.ones(len(a))
    squared = np.square(ranks[0] - ranks[1]).sum(-1)
    return 1 - 6 * squared / (count * (count**2 - 1))


def quantiles(values: np.ndarray) -> dict[str, float]:
    """Mean, median, 99th percentile and maximum."""
    p50, p99 = np.quantile(values, (0.5, 0.99))
    return {
        "mean": float(values.mean()),
        "p50": float(p50),
        "p99": float(p99),
        "max": float(values.max()),
    }
