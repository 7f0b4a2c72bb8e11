"""GET /metrics.

In: the service's engine, admission and counters. Out: Prometheus' text, which never waits for a
step: it shows what the core said last.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from jengine.metrics.registry import CONTENT_TYPE, text_of
from jengine.server.serving.service import Service


async def metrics(service: Service, http: Request) -> Response:
    """Everything that this server counts; while it starts, what concerns the process alone."""
    if service.has_engine:
        stats, admission = service.live.engine.session.stats, service.live.admission
        stats.rejections.update(admission.rejections)
        stats.ignored_fields = service.ignored_fields
    return Response(text_of(service.registry), headers={"content-type": CONTENT_TYPE})
