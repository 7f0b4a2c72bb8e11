"""Throughput of several engines that alternated on the same work, and its printed lines."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any


def rates_of(what: str, count: int, seconds: Mapping[str, list[float]]) -> dict[str, Any]:
    """Items per second by median round, and jengine's ratio to each peer."""
    rates = {name: count / statistics.median(found) for name, found in seconds.items()}
    times = {name: rates["jengine"] / rate for name, rate in rates.items()}
    return {"seconds": seconds, f"{what}_per_second": rates, "times": times}


def printed_rates(what: str) -> Callable[[dict[str, Any]], str]:
    """Returns a function that prints one line per engine."""

    def printed(result: dict[str, Any]) -> str:
        times = {
            name: f"; jengine has {ratio:.2f} times as many"
            for name, ratio in result["times"].items()
            if name != "jengine"
        }
        rates = result[f"{what}_per_second"].items()
        return "\n".join(
            f"{name}: {rate:.1f} {what}/s{times.get(name, '')}" for name, rate in rates
        )

    return printed
