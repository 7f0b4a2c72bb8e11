"""Health, version and load: routes that anyone may call, and that never wait for a step.

/health is an alarm, /health/ready says where to send requests. Where one of several cores has died
or stalled the first is red and the second green: the others take all requests.
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
    progress: str | None = None  # of the engine's start
    problem: str | None = None  # of one of several cores, or of what reads requests


class Version(msgspec.Struct):
    """The version of the server."""

    version: str


class Load(msgspec.Struct):
    """Completions that run or wait."""

    server_load: int


async def health(service: Service, http: Request) -> Response:
    """200 if everything is well; 503 while starting, draining, stalled or dead, or if any core or
    request reader is."""
    body = await state_of(service)
    return json_response(body, 200 if body.status == Phase.SERVING.value else 503)


async def ready(service: Service, http: Request) -> Response:
    """200 while requests should be routed here, even if some cores are lost."""
    body = await state_of(service)
    return json_response(body, 200 if Phase(body.status).takes_requests else 503)


async def state_of(service: Service) -> Health:
    """Body of both responses."""
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
    """200 while this process must not be restarted: it responds and its engine lives."""
    service.check_alive()
    body = Health(service.phase.value, 0, 0, service.last_step_age)
    return json_response(body, 200 if service.phase.is_live else 503)


async def version(service: Service, http: Request) -> Response:
    """The version of the server."""
    return json_response(Version(VERSION))


async def load(service: Service, http: Request) -> Response:
    """Number of running and waiting completions."""
    return json_response(Load(service.all_open_requests))
