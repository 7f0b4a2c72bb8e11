"""Health, version and load: public routes that never wait for a step.

/health is for alarms, /health/ready for routing. With one of several cores dead or stalled, /health
is 503 and /health/ready 200, as the other cores take all requests.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jengine.server.http.json_response import json_response
from jengine.server.phase import Phase
from jengine.server.serving.service import Service
from jengine.server.version import VERSION


class Health(msgspec.Struct, omit_defaults=True):
    """The state of the server and its engine."""

    status: str
    running: int
    waiting: int
    last_step_age_s: float | None
    progress: str | None = None  # start-up progress
    problem: str | None = None  # of a core or a tokenizing pool


class Version(msgspec.Struct):
    version: str


class Load(msgspec.Struct):
    """Completions that run or wait."""

    server_load: int


async def health(service: Service, http: Request) -> Response:
    """200 if all is well; 503 while starting, draining, degraded, stalled or dead."""
    body = await state_of(service)
    return json_response(body, 200 if body.status == Phase.SERVING.value else 503)


async def ready(service: Service, http: Request) -> Response:
    """200 while requests should be routed here, even if some cores are lost."""
    body = await state_of(service)
    return json_response(body, 200 if Phase(body.status).takes_requests else 503)


async def state_of(service: Service) -> Health:
    """Body of /health and /health/ready."""
    service.check_alive()
    counts = await service.current_counts()
    return Health(
        service.server_phase.value,
        counts.running,
        counts.waiting,
        service.last_step_age,
        service.progress,
        service.problem,
    )


async def live(service: Service, http: Request) -> Response:
    """200 unless this process should be restarted (liveness)."""
    service.check_alive()
    body = Health(service.phase.value, 0, 0, service.last_step_age)
    return json_response(body, 200 if service.phase.is_live else 503)


async def version(service: Service, http: Request) -> Response:
    """The version of the server."""
    return json_response(Version(VERSION))


async def load(service: Service, http: Request) -> Response:
    """Number of running and waiting completions."""
    return json_response(Load(service.all_open_requests))
