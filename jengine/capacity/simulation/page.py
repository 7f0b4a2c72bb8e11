"""A simulation as a page of charts; several are compared by their curves.

In: results, each with a name. Out: HTML. Must not calculate figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jengine.capacity.simulation.results import CURVE
from jengine.pictures.charts import Series, bars
from jengine.pictures.page import Columns, Section, Verbatim, curves, report

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
    charts, figures = list[Section](), {name: one["figures"] for name, one in results.items()}
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
            charts.append(Section(f"Share of time busy, {name}", "By replica.", chart))
    texts = [Section(name, one["command"], Verbatim(as_text(one))) for name, one in results.items()]
    return report(title, [first["command"], verdict(first), *others], Columns(*charts), *texts)


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


TITLES = {
    "ttft": "time to first token",
    "itl": "between two tokens",
    "tpot": "per output token",
    "e2el": "whole request",
}
SHOWN = ("p50", "p90", "p99", "p99.9")
GIGA = 1e9


def as_text(result: dict[str, Any]) -> str:
    """The figures as lines."""
    parts = (requests, latencies, objectives, pools, cost, copies, notes)
    return "\n".join(line for part in parts for line in part(result["figures"], result))


def requests(figures: dict[str, Any], result: dict[str, Any]) -> Iterator[str]:
    """Lines about the requests and their latencies."""
    yield (
        f"{figures['completed']:,} requests in {figures['seconds']:,.1f} simulated seconds "
        f"({result['wall_seconds']:,.1f} s of this machine)"
    )
    for name, words in (
        ("refused", "too long for the replicas"),
        ("unanswered", "found no replica that lived"),
        ("failures", "times a replica died"),
        ("rerun", "runs again, since a replica died"),
    ):
        if figures.get(name):  # a kept result may be older than a figure
            yield f"  {figures[name]:,} {words}"
    yield f"requests/s         {figures['request_throughput']:>14,.2f}"
    yield f"output tokens/s    {figures['output_throughput']:>14,.1f}"
    yield f"all tokens/s       {figures['total_token_throughput']:>14,.1f}"
    yield f"prompt tokens cached {figures['prefix_hit_rate']:>12.1%}"


def latencies(figures: dict[str, Any], result: dict[str, Any]) -> Iterator[str]:
    """A table of percentiles."""
    yield ""
    yield f"{'milliseconds':<20}" + "".join(f"{name:>12}" for name in SHOWN)
    for name, title in TITLES.items():
        values = figures["latency_ms"][name]
        yield f"{title:<20}" + "".join(f"{values[key]:>12,.2f}" for key in SHOWN)


def objectives(figures: dict[str, Any], result: dict[str, Any]) -> Iterator[str]:
    """Requests within the objectives."""
    if figures["objectives_ms"]:
        yield ""
        yield (
            f"goodput            {figures['request_goodput']:>14,.2f} requests/s "
            f"within {limits(figures)} "
            f"({figures['good_share']:.1%} of all)"
        )


def limits(figures: Mapping[str, Any]) -> str:
    """The objectives in words: each latency and its upper limit."""
    return ", ".join(f"{name} {ms:g} ms" for name, ms in figures["objectives_ms"].items())


def pools(figures: dict[str, Any], result: dict[str, Any]) -> Iterator[str]:
    """Lines about the utilisation of each pool."""
    for name, pool in figures["pools"].items():
        yield ""
        yield f"{name}: {pool['replicas']} with {pool['devices']} devices in all"
        if pool.get("replicas_on_average", pool["replicas"]) < pool["replicas"]:
            yield f"  {pool['replicas_on_average']:.1f} of them at a time on average"
        yield (
            f"  busy {pool['busy_share']:.1%}; while busy {pool['decode_rows_while_busy']:.1f} "
            f"decodes in a step, {pool['cache_use_while_busy']:.1%} of the cache in use"
        )
        yield (
            f"  {pool['steps']:,} steps, {pool['prefilled_tokens']:,} prompt tokens computed, "
            f"{pool['preemptions']:,} preemptions"
        )


def cost(figures: dict[str, Any], result: dict[str, Any]) -> Iterator[str]:
    """Device-hours and dollars."""
    values = figures["cost"]
    yield ""
    yield (
        f"a million output tokens: {values['device_hours_per_million_output_tokens']:.3f} "
        f"device-hours{dollars(values['dollars_per_million_output_tokens'])}"
    )
    yield (
        f"a million tokens, prompts included: {values['device_hours_per_million_tokens']:.3f} "
        f"device-hours{dollars(values['dollars_per_million_tokens'])}"
    )


def dollars(amount: float | None) -> str:
    """A cost to append to a number of device hours; empty without a price."""
    return "" if amount is None else f", ${amount:,.3f}"


def copies(figures: dict[str, Any], result: dict[str, Any]) -> Iterator[str]:
    """Keys and values that were copied."""
    if figures["moved_bytes"]:
        yield f"moved from prefill to decode: {figures['moved_bytes'] / GIGA:,.1f} GB"
    if figures["fetched_bytes"]:
        yield f"fetched from host memory: {figures['fetched_bytes'] / GIGA:,.1f} GB"


def notes(figures: dict[str, Any], result: dict[str, Any]) -> Iterator[str]:
    """Lines about costs that the model leaves out."""
    yield ""
    yield "Left out:"
    yield from (f"- {note}" for note in result["left_out"])
