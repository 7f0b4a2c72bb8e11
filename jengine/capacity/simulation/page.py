"""A simulation as a page of charts; several are compared by their curves.

In: results, each with a name. Out: HTML. Must not calculate figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jengine.capacity.simulation.report import TITLES, as_text, limits
from jengine.capacity.simulation.results import CURVE
from jengine.pictures.charts import Series, bars
from jengine.pictures.page import as_written, curves, report, section

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
    charts, figures = list[str](), {name: one["figures"] for name, one in results.items()}
    labels = [f"p{p:g}" for p in CURVE]
    for key, words in TITLES.items():
        lines = {name: one["curves_ms"][key] for name, one in figures.items()}
        charts.append(curves(words.capitalize(), "Milliseconds, by percentile.", lines, labels))
    labels = [f"{seconds:.0f} s" for seconds in first["figures"]["over_time"]["until"]]
    for key, (words, lead) in OVER_TIME.items():
        lines = {name: one["over_time"][key] for name, one in figures.items()}
        charts.append(curves(words, lead, lines, labels))
    for name, one in figures.items():
        if len(one["busy"]) <= MOST_BARS:
            names = [str(index) for index in range(len(one["busy"]))]
            chart = bars(names, [Series("busy", "ours", one["busy"])], title="busy")
            charts.append(section(f"Share of time busy, {name}", chart, "By replica."))
    texts = [as_written(name, as_text(one), one["command"]) for name, one in results.items()]
    return report(title, [first["command"], verdict(first), *others], charts, below=texts)


def headline(result: Mapping[str, Any]) -> str:
    """Headline: throughput, devices and cost."""
    figures = result["figures"]
    devices = sum(pool["devices"] for pool in figures["pools"].values())
    dollars = figures["cost"]["dollars_per_million_output_tokens"]
    price = "" if dollars is None else f", ${dollars:,.2f} a million output tokens"
    return (
        f"{figures['request_throughput']:,.2f} requests and {figures['output_throughput']:,.0f} "
        f"output tokens a second on {devices:,} {'device' if devices == 1 else 'devices'}{price}"
    )


def verdict(result: Mapping[str, Any]) -> str:
    """Share of requests within the latency objectives; without objectives the median latencies."""
    figures = result["figures"]
    if not figures["objectives_ms"]:
        first, each = (figures["latency_ms"][name]["p50"] for name in ("ttft", "tpot"))
        return f"At the median {first:,.0f} ms to the first token, then {each:,.1f} ms for each."
    return (
        f"{figures['good_share']:.1%} of all requests within {limits(figures)}: a goodput of "
        f"{figures['request_goodput']:,.2f} requests a second."
    )
