"""Per-request timings in responses (--enable-per-request-metrics).

In: the last output of a request. Out: durations in milliseconds, with vLLM's names.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from jengine.outputs import RequestMetrics, RequestOutput
from jengine.server.settings import ServerSettings


class PerRequestMetrics(msgspec.Struct):
    """Timings of one request under vLLM's names; null if the event did not happen."""

    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None
    queue_time_ms: float | None = None
    mean_itl_ms: float | None = None
    tokens_per_second: float | None = None


def per_request_metrics(times: RequestMetrics) -> PerRequestMetrics:
    """Compute the timings that --enable-per-request-metrics adds to a response.

    As in vLLM, time to first token counts from scheduling, and tokens per second include the
    prefill.
    """
    shown = PerRequestMetrics()
    if not times.first_token_ts:
        return shown
    tokens = times.num_generation_tokens
    decode = times.last_token_ts - times.first_token_ts
    running = times.last_token_ts - times.scheduled_ts
    shown.queue_time_ms = (times.scheduled_ts - times.queued_ts) * 1e3
    shown.time_to_first_token_ms = (times.first_token_ts - times.scheduled_ts) * 1e3
    shown.generation_time_ms = decode * 1e3
    if tokens > 1:
        shown.mean_itl_ms = decode * 1e3 / (tokens - 1)
    if running > 0:
        shown.tokens_per_second = tokens / running
    return shown


def told_metrics(
    outputs: Sequence[RequestOutput], settings: ServerSettings
) -> PerRequestMetrics | None:
    """Timings of a request if enabled; None if the response has several completions."""
    if not settings.enable_per_request_metrics:
        return None
    if len(outputs) != 1 or len(outputs[0].outputs) != 1:
        return None
    return per_request_metrics(outputs[0].metrics)
