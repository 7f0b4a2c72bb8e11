"""Request statistics of a front end: latency and length histograms, and finish reasons.

In: events of requests, with durations. Out: cumulative numbers, which an exporter reads at any
time, from any thread. Tokens, steps and the cache are counted by cores (`Counts`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from jengine.counts import Histogram, RequestTimes
from jengine.metrics.catalog import REQUEST_HISTOGRAMS
from jengine.metrics.histogram_buckets import REQUEST_LATENCY, bounds

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
# Limits on open requests, by the names of their settings.
LIMITS = ("max_num_queued_reqs", "max_num_queued_tokens")


@dataclass(frozen=True)
class EndedCompletion:
    """Statistics of a finished completion."""

    reason: str
    seconds: float  # since its request arrived
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    max_tokens: int | None  # the request's limit, if it gave one
    times: RequestTimes | None  # None: never reached a core


class EngineHistograms:
    """Latency and length histograms of one engine's requests, as seen by this front end."""

    def __init__(self, max_model_len: int) -> None:
        self.histograms = {
            metric.name: Histogram.of(bounds(metric.buckets, max_model_len))
            for metric in REQUEST_HISTOGRAMS
        }
        self.ended = dict.fromkeys(FINISH_REASONS, 0)
        self.first_token = self.histograms["time_to_first_token_seconds"]
        self.inter_token = self.histograms["inter_token_latency_seconds"]

    def end_completion(self, ended: EndedCompletion) -> None:
        self.ended[ended.reason if ended.reason in self.ended else "error"] += 1
        self._observe("e2e_request_latency_seconds", ended.seconds)
        self._observe("request_prompt_tokens", ended.prompt_tokens)
        self._observe("request_generation_tokens", ended.generated_tokens)
        self._observe(
            "request_prefill_kv_computed_tokens", ended.prompt_tokens - ended.cached_tokens
        )
        if ended.max_tokens is not None:
            self._observe("request_params_max_tokens", ended.max_tokens)
        if ended.times is not None:
            self._times(ended.times, ended.generated_tokens)

    def end_request(self, completions: int, most_generated: int) -> None:
        """Record a request whose completions have all ended."""
        self._observe("request_params_n", completions)
        self._observe("request_max_num_generation_tokens", most_generated)

    def _times(self, times: RequestTimes, generated: int) -> None:
        self._observe("request_queue_time_seconds", times.queue)
        self._observe("request_prefill_time_seconds", times.prefill)
        self._observe("request_decode_time_seconds", times.decode)
        self._observe("request_inference_time_seconds", times.prefill + times.decode)
        self._observe("request_num_preemptions", times.preemptions)
        mean = times.decode / (generated - 1) if generated > 1 else 0.0
        self._observe("request_time_per_output_token_seconds", mean)

    def _observe(self, name: str, value: float) -> None:
        self.histograms[name].observe(value)


class LaneCounts(NamedTuple):
    """Counts of one rendering pool (threads or processes that render and tokenize requests)."""

    busy: int
    refused: int  # requests that waited and never ran
    given_up: int  # requests that took too long, or whose client left


class FrontStats:
    """All statistics of one front end, by engine."""

    def __init__(self, max_model_len: int) -> None:
        self._max_model_len = max_model_len
        self.engines = {0: EngineHistograms(max_model_len)}
        # Counted by the server.
        self.rejections = dict.fromkeys(LIMITS, 0)  # by limit
        self.ignored_fields = 0  # unknown request fields
        self.lanes: dict[str, LaneCounts] = {}  # by kind of request
        self.dropped_frames = 0  # messages that the core could not read
        self.params_updates = Histogram.of(REQUEST_LATENCY)

    def of(self, engine: int) -> EngineHistograms:
        """Statistics of one engine's requests."""
        if engine not in self.engines:
            self.engines = {**self.engines, engine: EngineHistograms(self._max_model_len)}
        return self.engines[engine]

    def update_params(self, seconds: float) -> None:
        """Record a weight update."""
        self.params_updates.observe(seconds)
