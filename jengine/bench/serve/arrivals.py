"""Request arrival times: at a constant or ramping rate, or all at once.

In: settings. Out: seconds from the start for each request.
"""

from __future__ import annotations

import math

import numpy as np

from jengine.bench.serve.settings import LoadSettings


def arrivals(settings: LoadSettings, count: int) -> list[float]:
    """Seconds after the start at which each of `count` requests arrives.

    Intervals follow a gamma distribution whose shape is the burstiness: 1 is a Poisson process,
    less comes in bursts, infinity is even. At one rate, they are stretched to last count / rate.
    """
    rates = [rate_at(settings, index, count) for index in range(count)]
    rng = np.random.default_rng(settings.seed)
    intervals = [interval(rng, rate, settings.burstiness) for rate in rates]
    times = np.cumsum(intervals)
    if settings.ramp_up_strategy is None and times.size and times[-1] > 0:
        times = times * (count / settings.request_rate / times[-1])
    return times.tolist()


def rate_at(settings: LoadSettings, index: int, count: int) -> float:
    """Request rate at the arrival of this request."""
    start, end = settings.ramp_up_start_rps, settings.ramp_up_end_rps
    if settings.ramp_up_strategy is None or start is None or end is None:
        return settings.request_rate
    progress = index / max(count - 1, 1)
    if settings.ramp_up_strategy == "linear":
        return start + (end - start) * progress
    return start * (end / start) ** progress


def interval(rng: np.random.Generator, rate: float, burstiness: float) -> float:
    """Seconds until the next request."""
    if math.isinf(rate):
        return 0.0
    if math.isinf(burstiness):
        return 1 / rate
    return float(rng.gamma(burstiness, 1 / (rate * burstiness)))
