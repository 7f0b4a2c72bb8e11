"""Splits long audio at quiet places into parts that a model can read."""

from __future__ import annotations

import numpy as np

SEARCHED = 1  # seconds at the end of a part in which the quietest place is searched
WINDOW = 0.1  # length in seconds of the quiet window


def parts_of(samples: np.ndarray, longest: int, rate: int) -> list[np.ndarray]:
    """Parts of at most `longest` samples."""
    parts, begin = list[np.ndarray](), 0
    window, searched = max(int(WINDOW * rate), 1), min(SEARCHED * rate, longest // 2)
    while len(samples) - begin > longest:
        place = begin + longest - searched
        end = place + quietest(samples[place : begin + longest], window)
        parts.append(samples[begin:end])
        begin = end
    return [*parts, samples[begin:]]


def quietest(samples: np.ndarray, window: int) -> int:
    """Start of the window with the least energy."""
    whole = samples[: len(samples) // window * window].reshape(-1, window)
    if len(whole) == 0:
        return len(samples)
    return int(np.argmin(np.mean(whole.astype(np.float64) ** 2, axis=1))) * window
