"""Routes of pooling models, which are refused by name: this engine serves models that write."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from jengine.server.errors import ApiError
from jengine.server.serving.service import Service

PATHS = (
    "/v1/embeddings", "/pooling", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank",
    "/classify",
)  # fmt: skip


async def refused(service: Service, http: Request) -> Response:
    """400 that says why."""
    raise ApiError(
        400,
        f"{http.url.path} needs a pooling model; {service.live.names.default} writes text, and "
        "pooling is not built yet. Use /v1/completions or /v1/chat/completions.",
        param="model",
    )
