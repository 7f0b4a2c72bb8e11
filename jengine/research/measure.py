"""From three runs of the same prompts to results: points, logits, continuations.

In: the truth, the peer and ours, as Runs. Out: results with their bands. Must not know engines.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jengine.research.metrics import (
    VectorErrors,
    agreement,
    centred,
    distributions,
    joined,
    kl_divergence,
    rank_correlation,
    total_variation,
    vector_errors,
)
from jengine.research.results import (
    LOGITS,
    ContinuationResult,
    Divergence,
    LogitResult,
    PointResult,
)
from jengine.research.runs import Continuation, PromptRun, Reference, Run
from jengine.research.verdict import judge


def point_results(
    reference: Reference, ours: Run, points: Sequence[str], *, outliers_count: bool
) -> list[PointResult]:
    """Every tap point in the order of computation, and the logits."""
    return [
        point_result(name, reference, ours, outliers_count=outliers_count)
        for name in [*points, LOGITS]
    ]


def point_result(
    name: str, reference: Reference, ours: Run, *, outliers_count: bool
) -> PointResult:
    """The errors of one tensor over all prompts."""
    dtype = reference.dtype
    found, peer, truth = (
        [values_at(prompt, name) for prompt in run]
        for run in (ours, reference.working, reference.truth)
    )
    from_truth, peer_from_truth, apart = (
        errors_of(a, b, dtype) for a, b in ((found, truth), (peer, truth), (found, peer))
    )
    equal = all(np.array_equal(a, b) for a, b in zip(found, peer, strict=True))
    ratios, band = judge(
        from_truth.relative,
        peer_from_truth.relative,
        dtype,
        equal=equal,
        outliers_count=outliers_count,
    )
    return PointResult(name, from_truth, peer_from_truth, apart, ratios, band)


def values_at(run: PromptRun, name: str) -> np.ndarray:
    """A prompt's values at a tap point, or its logits."""
    return centred(run.logits) if name == LOGITS else run.points[name]


def errors_of(found: Sequence[np.ndarray], truth: Sequence[np.ndarray], dtype: str) -> VectorErrors:
    """Concatenate the errors of all prompts."""
    return joined([vector_errors(a, b, dtype) for a, b in zip(found, truth, strict=True)])


def logit_result(run: Run, other: Run, columns: Sequence[np.ndarray | None]) -> LogitResult:
    """The distributions of a run against those of another."""
    kl, kl_back, variation, ranks, given = [], [], [], [], []
    for one, its, kept in zip(run, other, columns, strict=True):
        p, q = distributions(its.logits, its.normalizer), distributions(one.logits, one.normalizer)
        kl.append(kl_divergence(p, q, whole=kept is None))
        kl_back.append(kl_divergence(q, p, whole=kept is None))
        variation.append(total_variation(p, q))
        ranks.append(rank_correlation(one.logits, its.logits))
        given.append(np.abs(one.given_logprobs - its.given_logprobs))
    top = [np.concatenate([prompt.top for prompt in each]) for each in (run, other)]
    return LogitResult(
        kl=np.concatenate(kl),
        kl_back=np.concatenate(kl_back),
        total_variation=np.concatenate(variation),
        agreement=agreement(*top),
        rank_correlation=np.concatenate(ranks),
        given_difference=np.concatenate(given),
        perplexities=(perplexity(run), perplexity(other)),
    )


def perplexity(run: Run) -> float:
    """Perplexity of the given tokens over all prompts; NaN if each prompt is a single token."""
    given = given_logprobs(run)
    return float(np.exp(-given.mean())) if len(given) else float("nan")


def given_logprobs(run: Run) -> np.ndarray:
    """log p of the given tokens of all prompts."""
    return np.concatenate([prompt.given_logprobs for prompt in run])


def continuation_results(reference: Reference, ours: Run) -> list[ContinuationResult]:
    """Find the first divergence of each greedy continuation."""
    # Two logits closer than this may swap places by rounding alone.
    noise = 2 * max(
        float(np.abs(peer.logits.astype(np.float64) - truth.logits).max())
        for peer, truth in zip(reference.working, reference.truth, strict=True)
    )
    runs = zip(reference.truth, reference.working, ours, strict=True)
    results = []
    for number, each in enumerate(runs):
        truth, peer, found = (run.continuation for run in each)
        results.append(
            ContinuationResult(
                prompt=number,
                truth=truth.tokens,
                peer=peer.tokens,
                ours=found.tokens,
                margins=margins(truth),
                ours_from_truth=divergence(truth, found.tokens, noise),
                peer_from_truth=divergence(truth, peer.tokens, noise),
                ours_from_peer=divergence(peer, found.tokens, noise),
            )
        )
    return results


def margins(path: Continuation) -> list[float]:
    """The best logit less the second best, at each step."""
    if path.logits.shape[-1] < 2:
        return [float("inf")] * len(path.tokens)
    return [float(gap) for gap in path.logits[:, 0] - path.logits[:, 1]]


def divergence(path: Continuation, tokens: Sequence[int], noise: float) -> Divergence | None:
    """The first step at which `tokens` leave a path, with the margin of the path's token there."""
    steps = enumerate(zip(path.tokens, tokens, strict=True))
    step = next((step for step, (a, b) in steps if a != b), None)
    if step is None:
        return None
    logits = dict(zip(path.ids[step].tolist(), path.logits[step].tolist(), strict=True))
    margin = logits[path.tokens[step]] - logits.get(tokens[step], float("-inf"))
    return Divergence(step, path.tokens[step], tokens[step], margin, margin <= noise)
