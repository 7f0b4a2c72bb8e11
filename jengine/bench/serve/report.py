"""One page about a load that opens offline: its figures, latencies by percentile, the timeline.

In: the result of `jengine bench serve`. Out: HTML.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jengine.bench.machine import hardware_of
from jengine.bench.serve.figures import CURVE, LATENCIES, Metric
from jengine.pictures.charts import Series, line_chart
from jengine.pictures.page import columns, document, header, section

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
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "serve.html"
    file.write_text(page(result), encoding="utf-8")
    return file


def page(result: dict[str, Any]) -> str:
    """The whole page."""
    about = f"{result['command']}, commit {result['commit']}, {hardware_of(result)}"
    title = f"{result['model_id']} on {result['server']}"
    parts = [header(title, about)]
    parts.append(section("Figures", facts(result)))
    charts = [percentiles(metric, result) for metric in LATENCIES]
    parts.append(columns(charts))
    parts.append(over_time(result["timeline"]))
    if result["first_errors"]:
        items = "".join(f"<li>{html.escape(error)}</li>" for error in result["first_errors"])
        parts.append(section("First errors", f"<ul>{items}</ul>"))
    return document(title, "".join(parts))


def facts(result: dict[str, Any]) -> str:
    """The figures as a table."""
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{result[key]:,.2f}</td></tr>"
        for key, name in FACTS.items()
        if result[key] is not None
    )
    return f"<table>{rows}</table>"


def percentiles(metric: Metric, result: dict[str, Any]) -> str:
    """One latency by percentile, if any of it is above zero."""
    values = result["curves"][metric.key]
    if not any(values):
        return ""
    labels = [f"p{one:g}" for one in CURVE]
    chart = line_chart([Series(metric.name, "ours", values)], labels, title=metric.title)
    return section(metric.title, chart, "Milliseconds, by percentile.")


def over_time(timeline: dict[str, list[int]]) -> str:
    """Tokens and requests, second by second."""
    tokens, requests = timeline["tokens"], timeline["requests"]
    if not tokens:
        return ""
    every = -(-len(tokens) // PLACES)
    series = [
        Series("tokens in a second", "ours", averages(tokens, every)),
        Series("requests running", "second", averages(requests, every)),
    ]
    labels = [str(second) for second in range(0, len(tokens), every)]
    lead = "By seconds since the first request."
    return section("Timeline", line_chart(series, labels, title="Timeline"), lead)


def averages(numbers: Sequence[int], every: int) -> list[float]:
    """The mean of each run of `every` numbers."""
    runs = [numbers[start : start + every] for start in range(0, len(numbers), every)]
    return [sum(run) / len(run) for run in runs]
