"""Traces: a span per request, sent to an OpenTelemetry collector. Needs the extra `otel`.

In: finished requests with their times. Out: spans with attributes by vLLM's names and by the GenAI
conventions. A request may carry its caller's W3C `traceparent`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jengine.errors import ConfigError
from jengine.outputs import RequestMetrics
from jengine.sampling_params import SamplingParams

SPAN = "llm_request"
SERVICE = "jengine"
INSTALL = "pip install 'jengine[otel]'"


@dataclass(frozen=True)
class EndedRequest:
    """A finished request, as its span describes it."""

    request_id: str
    traceparent: str | None
    params: SamplingParams
    metrics: RequestMetrics
    seconds: float  # since its arrival
    prompt_tokens: int
    reasons: tuple[str, ...]  # finish reasons of its completions


class Tracer:
    """Exports a span per request. `provider`: a TracerProvider of opentelemetry.sdk.trace."""

    def __init__(self, provider: Any, model: str) -> None:
        self.provider = provider
        self.model = model
        self._tracer = provider.get_tracer(SERVICE)
        self._kind = importlib.import_module("opentelemetry.trace").SpanKind.SERVER
        propagation = importlib.import_module("opentelemetry.trace.propagation.tracecontext")
        self._propagator = propagation.TraceContextTextMapPropagator()

    @classmethod
    def to(cls, endpoint: str, model: str) -> Tracer:
        """A tracer that exports spans by OTLP over HTTP, batched in a thread."""
        try:
            sdk = importlib.import_module("opentelemetry.sdk.trace")
            export = importlib.import_module("opentelemetry.sdk.trace.export")
            resources = importlib.import_module("opentelemetry.sdk.resources")
            otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        except ImportError as error:
            raise ConfigError(
                f"otlp_traces_endpoint={endpoint!r} needs OpenTelemetry. Install: {INSTALL} "
                f"({error})."
            ) from error
        provider = sdk.TracerProvider(resource=resources.Resource.create({"service.name": SERVICE}))
        provider.add_span_processor(
            export.BatchSpanProcessor(otlp.OTLPSpanExporter(endpoint=endpoint))
        )
        return cls(provider, model)

    def end(self, request: EndedRequest) -> None:
        """Export the span of a finished request."""
        # The start is wall-clock time, for display; the duration is from the monotonic clock.
        start = int(request.metrics.arrival_time * 1e9)
        span = self._tracer.start_span(
            SPAN,
            context=self._context(request.traceparent),
            kind=self._kind,
            attributes=attributes_of(request, self.model),
            start_time=start,
        )
        span.end(start + int(request.seconds * 1e9))

    def _context(self, traceparent: str | None) -> Any:
        """Parent context from a traceparent header; None if missing or malformed."""
        return self._propagator.extract({"traceparent": traceparent} if traceparent else {})

    def shutdown(self) -> None:
        """Flush pending spans."""
        self.provider.shutdown()


def attributes_of(request: EndedRequest, model: str) -> Mapping[str, Any]:
    """Span attributes of a request; unknown ones are left out."""
    metrics, params = request.metrics, request.params
    written = metrics.num_generation_tokens
    found: dict[str, Any] = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.request.id": request.request_id,
        "gen_ai.request.n": params.n,
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.response.finish_reasons": request.reasons,
        "gen_ai.usage.num_sequences": len(request.reasons),
        "gen_ai.usage.prompt_tokens": request.prompt_tokens,
        "gen_ai.usage.completion_tokens": written,
        "gen_ai.usage.input_tokens": request.prompt_tokens,
        "gen_ai.usage.output_tokens": written,
        "gen_ai.latency.e2e": request.seconds,
        **latencies_of(metrics),
    }
    return {name: value for name, value in found.items() if value is not None}


def latencies_of(metrics: RequestMetrics) -> dict[str, float]:
    """Latencies of a request that has produced tokens."""
    if not metrics.first_token_ts:
        return {}
    decode = metrics.last_token_ts - metrics.first_token_ts
    seconds = {
        "gen_ai.latency.time_to_first_token": metrics.first_token_latency,
        "gen_ai.latency.time_in_queue": metrics.scheduled_ts - metrics.queued_ts,
        "gen_ai.latency.time_in_model_prefill": metrics.first_token_ts - metrics.scheduled_ts,
        "gen_ai.latency.time_in_model_decode": decode,
        "gen_ai.latency.time_in_model_inference": metrics.last_token_ts - metrics.scheduled_ts,
        "gen_ai.server.time_to_first_token": metrics.first_token_latency,
    }
    if metrics.num_generation_tokens > 1:
        per_token = decode / (metrics.num_generation_tokens - 1)
        seconds["gen_ai.server.time_per_output_token"] = per_token
    return seconds
