"""A simulation's figures as text.

In: a result. Out: lines. Must not calculate figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

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
        ("rerun", "runs again, since a replica died"),
    ):
        if figures[name]:
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
    """The objectives in words: each latency and its most."""
    return ", ".join(f"{name} {ms:g} ms" for name, ms in figures["objectives_ms"].items())


def pools(figures: dict[str, Any], result: dict[str, Any]) -> Iterator[str]:
    """Lines about the utilisation of each pool."""
    for name, pool in figures["pools"].items():
        yield ""
        yield f"{name}: {pool['replicas']} with {pool['devices']} devices in all"
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
