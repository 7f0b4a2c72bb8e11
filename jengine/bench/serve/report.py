"""HTML report of a load, self-contained: metrics, latency percentiles and timeline.

In: the result of `jengine bench serve`. Out: HTML.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jengine.bench.machine import hardware_of
from jengine.bench.serve.figures import CURVE, LATENCIES, LatencyMetric
from jengine.pictures.page import curves, report, section, write

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
    charts = [percentiles(metric, result) for metric in LATENCIES]
    below = [over_time(result["timeline"])]
    if result["first_errors"]:
        items = "".join(f"<li>{html.escape(error)}</li>" for error in result["first_errors"])
        below.append(section("First errors", f"<ul>{items}</ul>"))
    return report(title, [about], charts, above=[section("Figures", facts(result))], below=below)


def facts(result: dict[str, Any]) -> str:
    """The metrics as a table."""
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{result[key]:,.2f}</td></tr>"
        for key, name in FACTS.items()
        if result[key] is not None
    )
    return f"<table>{rows}</table>"


def percentiles(metric: LatencyMetric, result: dict[str, Any]) -> str:
    """Chart of one latency by percentile, unless it is all zero."""
    values = result["curves"][metric.key]
    if not any(values):
        return ""
    labels = [f"p{one:g}" for one in CURVE]
    return curves(metric.title, "Milliseconds, by percentile.", {metric.name: values}, labels)


def over_time(timeline: dict[str, list[int]]) -> str:
    """Chart of tokens and requests per second."""
    tokens, requests = timeline["tokens"], timeline["requests"]
    if not tokens:
        return ""
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
