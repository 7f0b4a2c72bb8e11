"""A simulation as a page of charts; several are compared by their curves.

In: results, each with a name. Out: HTML. Must not calculate figures.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from jengine.capacity.simulation.report import TITLES, as_text, limits
from jengine.capacity.simulation.results import CURVE
from jengine.pictures.charts import Series, bars, line_chart
from jengine.pictures.page import columns, document, header, section

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
    """The page of up to three results, headed by what the first one answers."""
    first = next(iter(results.values()))
    title = headline(first)
    others = (f"{name}: {headline(one)}" for name, one in results.items() if one is not first)
    parts, charts = [header(title, first["command"], verdict(first), *others)], list[str]()
    labels = [f"p{p:g}" for p in CURVE]
    for name, words in TITLES.items():
        lines = series({key: one["figures"]["curves_ms"][name] for key, one in results.items()})
        chart = line_chart(lines, labels, title=words)
        charts.append(section(words.capitalize(), chart, "Milliseconds, by percentile."))
    for name, (words, lead) in OVER_TIME.items():
        lines = series({key: one["figures"]["over_time"][name] for key, one in results.items()})
        until = first["figures"]["over_time"]["until"]
        labels = [f"{seconds:.0f} s" for seconds in until]
        charts.append(section(words, line_chart(lines, labels, title=words), lead))
    for key, one in results.items():
        busy = one["figures"]["busy"]
        if len(busy) <= MOST_BARS:
            names = [str(index) for index in range(len(busy))]
            chart = bars(names, [Series("busy", "ours", busy)], title="busy")
            charts.append(section(f"Share of time busy, {key}", chart, "By replica."))
    parts.append(columns(charts))
    for key, one in results.items():
        text = f"<pre>{html.escape(as_text(one))}</pre>"
        parts.append(section(key, text, one["command"]))
    return document(title, "".join(parts))


def headline(result: Mapping[str, Any]) -> str:
    """What the devices answer, and what it costs."""
    figures = result["figures"]
    devices = sum(pool["devices"] for pool in figures["pools"].values())
    dollars = figures["cost"]["dollars_per_million_output_tokens"]
    price = "" if dollars is None else f", ${dollars:,.2f} a million output tokens"
    return (
        f"{figures['request_throughput']:,.2f} requests and {figures['output_throughput']:,.0f} "
        f"output tokens a second on {devices:,} {'device' if devices == 1 else 'devices'}{price}"
    )


def verdict(result: Mapping[str, Any]) -> str:
    """How many requests are answered within the objectives, or how fast half of them are."""
    figures = result["figures"]
    if not figures["objectives_ms"]:
        first, each = (figures["latency_ms"][name]["p50"] for name in ("ttft", "tpot"))
        return f"At the median {first:,.0f} ms to the first token, then {each:,.1f} ms for each."
    return (
        f"{figures['good_share']:.1%} of all requests within {limits(figures)}: a goodput of "
        f"{figures['request_goodput']:,.2f} requests a second."
    )


def series(values: Mapping[str, Sequence[float]]) -> list[Series]:
    """One line for each result."""
    return [
        Series(name, look, line) for (name, line), look in zip(values.items(), LOOKS, strict=False)
    ]
