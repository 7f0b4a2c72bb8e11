"""Metrics of a load: throughput, goodput, and latency percentiles.

In: replies. Out: a dict with the keys of vLLM's result files, in its units: seconds for lists,
milliseconds for statistics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jengine.bench.serve.load import ServedLoad
from jengine.bench.serve.reply import TimedReply
from jengine.bench.serve.settings import LoadSettings

# Shown in the page of charts, whatever percentiles are printed.
CURVE = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
MOST_ERRORS = 10


@dataclass(frozen=True)
class LatencyMetric:
    """One latency metric: key, label and heading."""

    key: str
    name: str
    title: str


TTFT = LatencyMetric("ttft", "TTFT", "Time to First Token")
TPOT = LatencyMetric("tpot", "TPOT", "Time per Output Token (excl. 1st token)")
ITL = LatencyMetric("itl", "ITL", "Inter-token Latency")
E2EL = LatencyMetric("e2el", "E2EL", "End-to-end Latency")
QUEUE = LatencyMetric("client_queue_time", "Client Queue Time", "Client-side Queueing")
WITH_QUEUE = LatencyMetric(
    "e2el_including_client_queue", "E2EL incl. Client Queue", "Queue-inclusive End-to-end Latency"
)
LATENCIES = (TTFT, TPOT, ITL, E2EL, QUEUE, WITH_QUEUE)


def figures(load: ServedLoad, settings: LoadSettings) -> dict[str, Any]:
    """All metrics of a load."""
    good = [reply for reply in load.replies if reply.success]
    made, read = sum(r.output_len for r in good), sum(r.prompt_len for r in good)
    peak, together = peaks(good)
    return {
        "duration": load.seconds,
        "completed": len(good),
        "failed": len(load.replies) - len(good),
        "total_input_tokens": read,
        "total_output_tokens": made,
        "request_throughput": len(good) / load.seconds,
        "request_goodput": goodput(good, settings, load.seconds),
        "output_throughput": made / load.seconds,
        "total_token_throughput": (made + read) / load.seconds,
        "max_output_tokens_per_s": peak,
        "max_concurrent_requests": together,
        **statistics(good, settings),
        "curves": {metric.key: curve(values(metric, good)) for metric in LATENCIES},
        "timeline": timeline(good),
        "first_errors": first_errors(load.replies),
    }


def details(load: ServedLoad) -> dict[str, Any]:
    """Per-request data for --save-detailed."""
    replies = load.replies
    return {
        "input_lens": [reply.prompt_len for reply in replies],
        "output_lens": [reply.output_len if reply.success else 0 for reply in replies],
        "ttfts": [reply.ttft for reply in replies],
        "itls": [reply.itl for reply in replies],
        "latencies": [reply.latency for reply in replies],
        "start_times": [reply.started for reply in replies],
        "queue_times": [reply.queued for reply in replies],
        "generated_texts": [reply.text for reply in replies],
        "errors": [reply.error for reply in replies],
    }


def values(metric: LatencyMetric, replies: Sequence[TimedReply]) -> list[float]:
    """Seconds of a latency metric, for every request or token that has it."""
    if metric is ITL:
        return [seconds for reply in replies for seconds in reply.itl]
    if metric is TPOT:
        return [reply.tpot for reply in replies if reply.output_len > 1]
    read = {
        "ttft": lambda reply: reply.ttft,
        "e2el": lambda reply: reply.latency,
        "client_queue_time": lambda reply: reply.queued,
        "e2el_including_client_queue": lambda reply: reply.latency + reply.queued,
    }[metric.key]
    return [read(reply) for reply in replies]


def shown(settings: LoadSettings) -> list[LatencyMetric]:
    """The latency metrics to report; queueing in the client only with a concurrency limit."""
    limited = settings.max_concurrency is not None
    apply = {
        QUEUE.key: limited,
        WITH_QUEUE.key: limited and not math.isinf(settings.request_rate),
    }
    return [m for m in LATENCIES if m.key in settings.metrics and apply.get(m.key, True)]


def statistics(replies: Sequence[TimedReply], settings: LoadSettings) -> dict[str, float]:
    """Mean, median, standard deviation and percentiles per metric, in milliseconds."""
    found: dict[str, float] = {}
    for metric in shown(settings):
        milliseconds = np.array(values(metric, replies) or [0.0]) * 1e3
        found[f"mean_{metric.key}_ms"] = float(milliseconds.mean())
        found[f"median_{metric.key}_ms"] = float(np.median(milliseconds))
        found[f"std_{metric.key}_ms"] = float(milliseconds.std())
        for percentile in settings.percentiles:
            key = f"p{percentile:g}_{metric.key}_ms"
            found[key] = float(np.percentile(milliseconds, percentile))
    return found


def goodput(replies: Sequence[TimedReply], settings: LoadSettings, seconds: float) -> float | None:
    """Requests per second that met every SLO."""
    limits = settings.objectives
    if not limits:
        return None
    read = {"ttft": lambda r: r.ttft, "tpot": lambda r: r.tpot, "e2el": lambda r: r.latency}
    met = sum(
        all(read[name](reply) * 1e3 <= limit for name, limit in limits.items()) for reply in replies
    )
    return met / seconds


def curve(seconds: Sequence[float]) -> list[float]:
    """Milliseconds at the percentiles in CURVE."""
    if not seconds:
        return []
    return [round(float(one), 3) for one in np.percentile(np.array(seconds) * 1e3, CURVE)]


def timeline(replies: Sequence[TimedReply]) -> dict[str, list[int]]:
    """Per second: tokens received and requests running. Tokens of one answer are spread evenly over
    its chunks."""
    if not replies:
        return {"tokens": [], "requests": []}
    began = min(reply.started for reply in replies)
    count = int(max(reply.times[-1] for reply in replies) - began) + 1
    received = np.concatenate([np.array(reply.times) for reply in replies]) - began
    each = np.concatenate([np.full(len(r.times), r.output_len / len(r.times)) for r in replies])
    tokens = np.bincount(received.astype(int), each, minlength=count).round().astype(int)
    running = np.zeros(count, int)
    for reply in replies:
        running[int(reply.started - began) : int(reply.times[-1] - began) + 1] += 1
    return {"tokens": tokens.tolist(), "requests": running.tolist()}


def peaks(replies: Sequence[TimedReply]) -> tuple[float, int]:
    """Maximum tokens in a second, and maximum concurrent requests."""
    line = timeline(replies)
    return float(max(line["tokens"], default=0)), max(line["requests"], default=0)


def first_errors(replies: Sequence[TimedReply]) -> list[str]:
    """Errors of the first failed requests."""
    return [reply.error for reply in replies if not reply.success][:MOST_ERRORS]
