"""GET /metrics.

In: the service. Out: Prometheus text over all API processes. Never waits for a step: shows the
cores' last reported counts.
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
