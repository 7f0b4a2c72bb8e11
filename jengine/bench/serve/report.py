"""HTML report of a load, self-contained: metrics, latency percentiles and timeline.

In: the result of `jengine bench serve`. Out: HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jengine.bench.machine import hardware_of
from jengine.bench.serve.figures import CURVE, LATENCIES, LatencyMetric
from jengine.pictures.page import Columns, Items, Section, Table, curves, report, write

FACTS = {
    "completed": "requests answered",
    "failed": "requests failed",
    "duration": "seconds",
    "request_throughput": "requests/s",
    "request_goodput": "requests/s within the objectives",
    "output_throughput": "output tokens/s",
    "total_token_throughput": "tokens/s, prompts included",
    "max_output_tokens_per_s": "most tokens in a second",
    "max_concurrent_requests": "most requests at once",
}
# Seconds of the timeline that a chart shows; longer loads are shown in longer steps.
PLACES = 120


def draw(result: dict[str, Any], folder: Path) -> Path:
    """Write the page; returns its path."""
    return write(page(result), folder / "serve.html")


def page(result: dict[str, Any]) -> str:
    """The whole page."""
    about = f"{result['command']}, commit {result['commit']}, {hardware_of(result)}"
    title = f"{result['model_id']} on {result['server']}"
    facts = [
        (name, f"{result[key]:,.2f}") for key, name in FACTS.items() if result[key] is not None
    ]
    charts = [
        percentiles(metric, values)
        for metric in LATENCIES
        if any(values := result["curves"][metric.key])
    ]
    parts = [Section("Figures", Table((), facts)), Columns(*charts)]
    if result["timeline"]["tokens"]:
        parts.append(over_time(result["timeline"]))
    if result["first_errors"]:
        parts.append(Section("First errors", Items(result["first_errors"])))
    return report(title, [about], *parts)


def percentiles(metric: LatencyMetric, values: Sequence[float]) -> Section:
    """Chart of one latency by percentile."""
    labels = [f"p{one:g}" for one in CURVE]
    return curves(metric.title, "Milliseconds, by percentile.", {metric.name: values}, labels)


def over_time(timeline: dict[str, list[int]]) -> Section:
    """Chart of tokens and requests per second."""
    tokens, requests = timeline["tokens"], timeline["requests"]
    every = -(-len(tokens) // PLACES)
    lines = {
        "tokens in a second": averages(tokens, every),
        "requests running": averages(requests, every),
    }
    labels = [str(second) for second in range(0, len(tokens), every)]
    return curves("Timeline", "By seconds since the first request.", lines, labels)


def averages(numbers: Sequence[int], every: int) -> list[float]:
    """Means of consecutive groups of `every` numbers."""
    runs = [numbers[start : start + every] for start in range(0, len(numbers), every)]
    return [sum(run) / len(run) for run in runs]
