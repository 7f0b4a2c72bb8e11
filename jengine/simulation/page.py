"""A simulation as a page of charts; several are compared by their curves.

In: results, each with a name. Out: HTML. Must not calculate figures.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from jengine.pictures.charts import Series, bars, line_chart
from jengine.pictures.page import document, section
from jengine.simulation.report import TITLES, as_text
from jengine.simulation.results import CURVE

LOOKS = ("ours", "second", "apart")
# Longer lists of replicas are not shown one by one.
MOST_BARS = 16
OVER_TIME = {
    "ttft_p50": ("Time to first token, median", "Milliseconds, by when requests arrived."),
    "ttft_p99": ("Time to first token, 99th percentile", "Milliseconds, by when they arrived."),
    "in_progress": ("Requests in progress", "At the end of each slice of time."),
    "tokens_a_second": ("Output tokens per second", "Of the requests that ended in each slice."),
}


def page(results: Mapping[str, dict[str, Any]]) -> str:
    """The page of up to three results."""
    first = next(iter(results.values()))
    title = " and ".join(results)
    parts = [f"<header><h1>{html.escape(title)}</h1></header>"]
    labels = [f"p{p:g}" for p in CURVE]
    for name, words in TITLES.items():
        lines = series({key: one["figures"]["curves_ms"][name] for key, one in results.items()})
        chart = line_chart(lines, labels, title=words)
        parts.append(section(words.capitalize(), chart, "Milliseconds, by percentile."))
    for name, (words, lead) in OVER_TIME.items():
        lines = series({key: one["figures"]["over_time"][name] for key, one in results.items()})
        until = first["figures"]["over_time"]["until"]
        labels = [f"{seconds:.0f} s" for seconds in until]
        parts.append(section(words, line_chart(lines, labels, title=words), lead))
    for key, one in results.items():
        busy = one["figures"]["busy"]
        if len(busy) <= MOST_BARS:
            names = [str(index) for index in range(len(busy))]
            chart = bars(names, [Series("busy", "ours", busy)], title="busy")
            parts.append(section(f"Share of time busy, {key}", chart, "By replica."))
    for key, one in results.items():
        text = f"<pre>{html.escape(as_text(one))}</pre>"
        parts.append(section(key, text, one["command"]))
    return document(title, "".join(parts))


def series(values: Mapping[str, Sequence[float]]) -> list[Series]:
    """One line for each result."""
    return [
        Series(name, look, line) for (name, line), look in zip(values.items(), LOOKS, strict=False)
    ]
