"""The results of a comparison as data: points, logits, continuations, sweeps, and the verdict.

In: errors that were measured and judged. Out: the worst of them, and a sentence about it. Must not
know how anything is measured or shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jengine.errors import ConfigError, nearest_name
from jengine.research.metrics import VectorErrors, quantiles
from jengine.research.verdict import Band, Ratios, noise_limit

LOGITS = "logits"


@dataclass(frozen=True)
class PointResult:
    """One tensor of the model, at every position of every prompt."""

    name: str
    ours: VectorErrors  # against the truth
    peer: VectorErrors  # torch in the working dtype, against the truth
    apart: VectorErrors  # ours against the peer
    ratios: Ratios
    band: Band

    def summary(self) -> dict[str, Any]:
        row: dict[str, Any] = {"name": self.name, "band": self.band.label}
        row |= {f"ratio_{name}": value for name, value in self.ratios._asdict().items()}
        for who, errors in (("ours", self.ours), ("torch", self.peer), ("apart", self.apart)):
            row[f"{who}_relative"] = float(np.median(errors.relative))
            row[f"{who}_relative_p90"] = float(np.quantile(errors.relative, 0.9))
            row[f"{who}_max_abs"] = float(errors.max_abs.max())
            row[f"{who}_rms"] = float(np.sqrt(np.square(errors.rms).mean()))
            row[f"{who}_cosine_distance"] = float(np.median(errors.cosine))
            row[f"{who}_ulps"] = float(np.median(errors.ulps))
        return row


@dataclass(frozen=True)
class LogitResult:
    """Distributions of one run against another's, at every position."""

    kl: np.ndarray  # KL(other || this)
    kl_back: np.ndarray
    total_variation: np.ndarray
    agreement: Mapping[int, float]
    rank_correlation: np.ndarray
    given_difference: np.ndarray  # |difference of log p| of the given tokens
    perplexities: tuple[float, float]  # this, other

    def summary(self) -> dict[str, Any]:
        """Means, percentiles and agreement, as JSON types."""
        return {
            "kl": quantiles(self.kl),
            "kl_back": quantiles(self.kl_back),
            "total_variation": quantiles(self.total_variation),
            "agreement": {f"top_{k}": share for k, share in self.agreement.items()},
            "rank_correlation": float(self.rank_correlation.mean()),
            "given_logprob_difference": quantiles(self.given_difference)
            if len(self.given_difference)
            else None,
            "perplexity": self.perplexities[0],
            "perplexity_of_other": self.perplexities[1],
        }


@dataclass(frozen=True)
class Divergence:
    """The first step at which two greedy continuations differ."""

    step: int
    expected: int
    found: int
    # The truth's logit of the expected token less that of the found one; inf: not even near.
    margin: float
    tie: bool


@dataclass(frozen=True)
class ContinuationResult:
    """Greedy decoding of one prompt by all three."""

    prompt: int
    truth: list[int]
    peer: list[int]
    ours: list[int]
    margins: list[float]  # the truth's best logit less its second best, at each step
    ours_from_truth: Divergence | None
    peer_from_truth: Divergence | None
    ours_from_peer: Divergence | None

    @property
    def band(self) -> Band:
        """Leaving the truth's path is noise at a tie, and otherwise suspicious."""
        if self.ours_from_truth is None:
            return Band.BIT_EQUAL
        return Band.WITHIN_NOISE if self.ours_from_truth.tie else Band.SUSPICIOUS


@dataclass(frozen=True)
class SweepResult:
    """The engine against itself: the same tokens computed in another way."""

    name: str
    meaning: str
    positions: int
    relative: float  # median relative difference of logits
    max_abs: float
    top_1: float
    bit_equal: bool
    ratios: Ratios
    band: Band


@dataclass(frozen=True)
class Inputs:
    """The model, dtypes, prompts and command of a comparison."""

    model: str
    architecture: str
    dtype: str
    truth_dtype: str
    prompts: list[list[int]]
    vocabulary: Mapping[int, str]  # what tokens read as; empty without a tokenizer
    command: str


@dataclass(frozen=True)
class Results:
    """All results of a comparison, without how they were measured."""

    inputs: Inputs
    points: list[PointResult]  # in the order of computation, logits last
    ours: LogitResult  # against the truth
    peer: LogitResult  # torch against the truth
    apart: LogitResult  # ours against torch
    given: Mapping[str, np.ndarray]  # truth, peer, ours: log p of the given tokens
    continuations: list[ContinuationResult]
    sweeps: list[SweepResult]
    environment: Mapping[str, str]
    notes: list[str] = field(default_factory=list)

    @property
    def band(self) -> Band:
        """The worst band of all points, continuations and sweeps."""
        continued = [one.band for one in self.continuations]
        return max(
            *(point.band for point in self.points),
            *(sweep.band for sweep in self.sweeps),
            *(band for band in continued if band > Band.BIT_EQUAL),
            Band.BIT_EQUAL,
        )

    @property
    def passed(self) -> bool:
        """Whether nothing is suspicious or wrong."""
        return self.band <= Band.WITHIN_NOISE

    @property
    def first_offender(self) -> str | None:
        """The first tensor, in the order of computation, that is not within the peer's noise."""
        return next((one.name for one in self.points if one.band > Band.WITHIN_NOISE), None)

    @property
    def logit_ratio(self) -> float:
        """The error of the logits by that of torch."""
        return self.point(LOGITS).ratios.worst

    @property
    def verdict(self) -> str:
        """The headline: the band and the figure or the tensor that decides it."""
        start = f"{self.band.label.capitalize()}: jengine in {self.inputs.dtype}"
        if self.passed:
            return (
                f"{self.band.label.capitalize()}: jengine's {self.inputs.dtype} logits are "
                f"{shown(self.logit_ratio)} times as far from the {self.inputs.truth_dtype} truth "
                "as torch's."
            )
        if self.first_offender is not None:
            return f"{start} first leaves the noise at {self._distance(self.first_offender)}."
        if any(sweep.band > Band.WITHIN_NOISE for sweep in self.sweeps):
            worst = max(self.sweeps, key=lambda sweep: sweep.band)
            return f"{start} differs from itself: {worst.meaning}."
        worst = max(self.continuations, key=lambda one: one.band)
        return f"{start} leaves the greedy path of prompt {worst.prompt} where there is no tie."

    def _distance(self, name: str) -> str:
        point = self.point(name)
        truth = f"the {self.inputs.truth_dtype} truth"
        limit = noise_limit(len(point.ours.relative))
        if point.band is Band.SUSPICIOUS and point.ratios.worst <= limit:
            return (
                f"{name}: at single positions {shown(point.ratios.extreme)} times as far from "
                f"{truth} as torch's worst"
            )
        return f"{name}: there it is {shown(point.ratios.worst)} times as far from {truth} as torch"

    def point(self, name: str) -> PointResult:
        names = [one.name for one in self.points]
        if name not in names:
            raise ConfigError(
                f"{name!r} was not compared.{nearest_name(name, names)} There are: "
                f"{', '.join(names)}."
            )
        return self.points[names.index(name)]


def shown(number: float) -> str:
    """A number with three digits."""
    if not math.isfinite(number):
        return "infinitely many" if number > 0 else str(number)
    if number >= 1000:
        return f"{number:,.0f}"
    return f"{number:.2f}" if number >= 0.01 else f"{number:.2e}"
