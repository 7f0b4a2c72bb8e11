"""Admin routes, which need the admin key: caches, pauses, aborts, profiles."""

from __future__ import annotations

import asyncio
from typing import get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jengine.api.async_requests import PauseMode
from jengine.api.profiling import trace_folder
from jengine.errors import ConfigError, RequestError
from jengine.server.errors import ApiError
from jengine.server.http.body import read_body
from jengine.server.http.json_response import json_response
from jengine.server.serving import everywhere
from jengine.server.serving.service import Service


class AbortRequest(msgspec.Struct, kw_only=True):
    """The body of POST /abort_requests."""

    request_ids: list[str] | None = None


class Done(msgspec.Struct):
    """What was done."""

    status: str


async def reset_prefix_cache(service: Service, http: Request) -> Response:
    """Forget cached prefixes; with ?reset_running_requests=true also those that are in use."""
    running = flag(http, "reset_running_requests", usual=False)
    done = await asyncio.to_thread(service.live.front.reset_prefix_cache, running)
    if not done:
        raise ApiError(
            409, "Requests are using the cache. Wait for them, or give reset_running_requests=true."
        )
    return json_response(Done("reset"))


async def pause(service: Service, http: Request) -> Response:
    """Run no steps until /resume. ?mode= says what open requests do: abort, wait or keep."""
    mode = http.query_params.get("mode", "abort")
    modes: tuple[PauseMode, ...] = get_args(PauseMode)
    if mode not in modes:
        raise ApiError(400, f"mode={mode!r:.40}: expected {', '.join(modes)}.", param="mode")
    await everywhere.pause(service, modes[modes.index(mode)])
    if flag(http, "clear_cache", usual=True):
        await asyncio.to_thread(service.live.front.reset_prefix_cache, True)
    return json_response(Done("paused"))


async def resume(service: Service, http: Request) -> Response:
    """Run steps again."""
    await everywhere.resume(service)
    return json_response(Done("resumed"))


async def is_paused(service: Service, http: Request) -> Response:
    """Whether generation is paused."""
    return json_response({"is_paused": service.live.requests.paused})


async def abort_requests(service: Service, http: Request) -> Response:
    """End requests by their ids, which responses and X-Request-Id tell; all if none are given."""
    request = await read_body(http, AbortRequest, strict=True)
    return json_response({"aborted": await everywhere.abort(service, request.request_ids)})


async def start_profile(service: Service, http: Request) -> Response:
    """Record what the devices do, in the folder that the server was given."""
    try:
        folder = trace_folder(service.live.engine.args)
    except ConfigError as error:
        raise ApiError(
            404, "Profiling is off. Start the server with --profiler-dir DIR."
        ) from error
    await call_profiler(service, "start_profile", folder=folder)
    return json_response(Done("started"))


async def stop_profile(service: Service, http: Request) -> Response:
    """Write what was recorded."""
    await call_profiler(service, "stop_profile")
    return json_response(Done("stopped"))


async def call_profiler(service: Service, method: str, **arguments: str) -> None:
    """Call the profiler in every process that runs steps; 409 if it is on, or off, already."""
    try:
        await asyncio.to_thread(service.live.front.call_workers, method, arguments)
    except RequestError as error:
        raise ApiError(409, str(error)) from error


def flag(http: Request, name: str, *, usual: bool) -> bool:
    """A query parameter that is true or false."""
    text = http.query_params.get(name)
    if text is None:
        return usual
    if text.lower() not in ("true", "false", "1", "0"):
        raise ApiError(400, f"{name}={text!r:.40}: expected true or false.", param=name)
    return text.lower() in ("true", "1")
