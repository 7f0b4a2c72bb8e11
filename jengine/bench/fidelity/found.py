"""The error of a draw against transformers, and its tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LIMIT, ILL_CONDITIONED = 1e-4, 1e-3
# Root mean squares of the errors of ours and of torch's in float32: of other orders of sums, single
# positions are further apart.
AS_INEXACT = 3.0


class DrawError(NamedTuple):
    """Error and tolerance of one draw."""

    error: float  # of log-probabilities, states or scores, the largest
    limit: float
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the error is within tolerance."""
        return self.error <= self.limit


def beside_float64(
    ours: Sequence[np.ndarray], expected: Sequence[np.ndarray], exact: Sequence[np.ndarray]
) -> DrawError:
    """Error against torch in float32; for an ill-conditioned draw, on which torch itself is about
    as far from float64, error against float64."""
    mine, inexact = spread(ours, exact), spread(expected, exact)
    note = f"root mean squares from float64: {mine:.1e}, torch {inexact:.1e}"
    if mine > AS_INEXACT * inexact:
        return DrawError(distance(ours, expected), LIMIT, note)
    return DrawError(distance(ours, exact), ILL_CONDITIONED, f"ill-conditioned: {note}")


def distance(ours: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Maximum absolute difference."""
    return max(float(np.abs(one - rows).max()) for one, rows in zip(ours, expected, strict=True))


def spread(ours: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """RMS difference."""
    squares = [((one - rows) ** 2).mean() for one, rows in zip(ours, expected, strict=True)]
    return float(np.sqrt(np.mean(squares)))
