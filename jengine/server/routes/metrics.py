"""GET /metrics.

In: the service. Out: Prometheus' text of all API processes, which never waits for a step: it shows
what the core said last.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from jengine.metrics.registry import CONTENT_TYPE
from jengine.server.serving.everywhere import metrics_text
from jengine.server.serving.service import Service


async def metrics(service: Service, http: Request) -> Response:
    """Prometheus metrics; during start-up only those of the API processes."""
    return Response(await metrics_text(service), headers={"content-type": CONTENT_TYPE})
