"""HTTP metrics: number and duration of requests, by route.

A middleware outside limits and authentication, so that refused requests count as well. Labels are
routes, never client-chosen paths: a request that matched no route has the handler "none".
"""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Probes, which would outnumber everything else.
UNCOUNTED = frozenset({"/metrics", "/health", "/load", "/ping", "/version"})
METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
COARSE = (0.1, 0.5, 1)
FINE = (
    .01, .025, .05, .075, .1, .25, .5, .75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60,
)  # fmt: skip


class HttpCounters:
    """Prometheus metrics of HTTP requests, by handler, method and status."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "http_requests_total", "Requests by route, method and class of status.",
            ("handler", "method", "status"), registry=registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "http_request_duration_seconds", "Seconds until a response was complete, by route.",
            ("handler", "method"), buckets=COARSE, registry=registry,
        )  # fmt: skip
        self.fine_seconds = Histogram(
            "http_request_duration_highr_seconds", "Seconds until a response was complete.",
            buckets=FINE, registry=registry,
        )  # fmt: skip

    def count(self, handler: str, method: str, status: int, seconds: float) -> None:
        """Record an answered request."""
        method = method if method in METHODS else "other"
        self.requests.labels(handler, method, f"{status // 100}xx").inc()
        self.seconds.labels(handler, method).observe(seconds)
        self.fine_seconds.observe(seconds)


class HttpMetrics:
    """ASGI middleware that records requests. Routes put their path into the state as `handler`."""

    def __init__(self, app: ASGIApp, counters: HttpCounters) -> None:
        self.app = app
        self.counters = counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app, and record the request when its response is complete or has failed."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.monotonic(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        state = scope.setdefault("state", {})
        try:
            await self.app(scope, receive, watched)
        finally:
            handler = state.get("handler", "none")
            if handler not in UNCOUNTED:
                self.counters.count(handler, scope["method"], status, time.monotonic() - began)
