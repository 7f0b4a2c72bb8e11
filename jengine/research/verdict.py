"""Judges errors against those of a peer: within its noise, suspicious, or wrong.

In: relative errors of two results, one number per position. Out: ratios and a band. The peer is
torch in the working dtype; jengine need not be closer to the truth than that. Must not know layers.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np

from jengine.research.metrics import unit_roundoff

# Multiples of the peer's error.
NOISE, SUSPICIOUS = 1.5, 5.0
# A single position may stand out this much before it is pointed at.
EXTREME = 10.0
TAIL = 0.9
# With few positions, chance alone moves a ratio of errors by exp(CHANCE / sqrt(positions)).
CHANCE = 2.5


class Band(enum.IntEnum):
    """Verdict on an error, from best to worst."""

    BIT_EQUAL = 0
    WITHIN_NOISE = 1
    SUSPICIOUS = 2
    WRONG = 3

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", " ").replace("bit equal", "bit-equal")


class Ratios(NamedTuple):
    """Our error over the peer's: median, 90th percentile, maximum."""

    typical: float
    tail: float
    extreme: float

    @property
    def worst(self) -> float:
        """The larger of typical and tail. The extreme is shown, not judged."""
        return max(self.typical, self.tail)


class Judgement(NamedTuple):
    """Ratios and the band that they fall into."""

    ratios: Ratios
    band: Band


def judge(
    ours: np.ndarray, peer: np.ndarray, dtype: str, *, equal: bool, outliers_count: bool = True
) -> Judgement:
    """Compare relative errors. `equal`: the two results are the same bit for bit.

    Medians and the 90th percentile are judged, not means. With experts, a near tie in the router
    sends a token to another expert, so a few large errors are no defect: `outliers_count` is False.
    """
    floor = unit_roundoff(dtype) / 2  # about what a single rounding costs
    values = [
        ratio(quantile(ours, share), quantile(peer, share), floor) for share in (0.5, TAIL, 1.0)
    ]
    ratios = Ratios(*values)
    if equal:
        return Judgement(ratios, Band.BIT_EQUAL)
    noise = noise_limit(min(len(ours), len(peer)))
    if ratios.worst > max(SUSPICIOUS, noise):
        return Judgement(ratios, Band.WRONG)
    stands_out = outliers_count and ratios.extreme > EXTREME
    if ratios.worst > noise or stands_out:
        return Judgement(ratios, Band.SUSPICIOUS)
    return Judgement(ratios, Band.WITHIN_NOISE)


def noise_limit(positions: int) -> float:
    """Largest error ratio that counts as noise: above NOISE only for few positions."""
    return max(NOISE, float(np.exp(CHANCE / np.sqrt(positions))))


def quantile(values: np.ndarray, share: float) -> float:
    """Quantile without interpolation, which infinities would turn into NaN."""
    return float(np.quantile(values, share, method="inverted_cdf"))


def ratio(ours: float, peer: float, floor: float) -> float:
    """Our error over the peer's, which counts as at least the floor; 1 if both are infinite."""
    if not np.isfinite(ours):
        return 1.0 if not np.isfinite(peer) else float("inf")
    return float(ours / max(peer, floor))
