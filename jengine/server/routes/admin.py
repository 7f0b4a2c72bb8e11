"""Admin routes, which need the admin key: caches, pauses, aborts, profiles."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jengine.api.async_requests import PauseMode
from jengine.api.profiling import trace_folder
from jengine.api.sleep_order import SleepOrder
from jengine.assembly.processes.elastic import DRAIN_SECONDS, scale_replicas
from jengine.engine.questions import ReloadWeights, ResetPrefixCache
from jengine.errors import CapacityError, ConfigError, RequestError
from jengine.runner.report_types import CACHE
from jengine.server.errors import ApiError
from jengine.server.http.body import read_body
from jengine.server.http.json_response import json_response
from jengine.server.serving import everywhere
from jengine.server.serving.service import Service


class AbortRequest(msgspec.Struct, kw_only=True):
    """The body of POST /abort_requests."""

    request_ids: list[str] | None = None


class ScaleRequest(msgspec.Struct, kw_only=True):
    """The body of POST /scale_elastic_ep."""

    new_data_parallel_size: int
    drain_timeout: float = DRAIN_SECONDS


class Scaled(msgspec.Struct):
    """The new number of replicas."""

    message: str


class Slept(msgspec.Struct):
    """The engine's sleep level."""

    status: str
    level: int


class Woken(msgspec.Struct):
    """Whether the engine is fully awake, and the requested tags."""

    status: str
    tags: list[str] | None


class Done(msgspec.Struct):
    status: str


async def reset_prefix_cache(service: Service, http: Request) -> Response:
    """Clear the prefix cache; ?reset_running_requests=true preempts running requests first."""
    running = flag(http, "reset_running_requests", usual=False)
    done = await asyncio.to_thread(service.live.front.client.ask, ResetPrefixCache(running))
    if not done:
        raise ApiError(
            409, "Requests are using the cache. Wait for them, or give reset_running_requests=true."
        )
    return json_response(Done("reset"))


async def pause(service: Service, http: Request) -> Response:
    """Stop stepping until /resume; ?mode=abort|wait|keep decides about open requests."""
    mode = http.query_params.get("mode", "abort")
    modes: tuple[PauseMode, ...] = get_args(PauseMode)
    if mode not in modes:
        raise ApiError(400, f"mode={mode!r:.40}: expected {', '.join(modes)}.", param="mode")
    await everywhere.pause(service, modes[modes.index(mode)])
    if flag(http, "clear_cache", usual=True):
        await asyncio.to_thread(service.live.front.client.ask, ResetPrefixCache(True))
    return json_response(Done("paused"))


async def resume(service: Service, http: Request) -> Response:
    """Continue stepping after /pause."""
    await everywhere.resume(service)
    return json_response(Done("resumed"))


async def is_paused(service: Service, http: Request) -> Response:
    """Whether generation is paused."""
    return json_response({"is_paused": service.live.requests.paused})


async def sleep(service: Service, http: Request) -> Response:
    """Offload weights and KV cache until /wake_up: ?level=, ?tags=, ?mode=, ?new_requests=."""
    query = http.query_params
    try:
        level = int(query.get("level", "1"))
    except ValueError as error:
        text = query["level"]
        raise ApiError(400, f"level={text!r:.40}: expected 0, 1 or 2.", param="level") from error
    mode: Any = query.get("mode", "abort")
    new: Any = query.get("new_requests", "keep")
    enabled = service.live.engine.args.enable_sleep_mode
    order = SleepOrder.checked(enabled, level, mode, query.getlist("tags") or None, new)
    await everywhere.sleep(service, order)
    return json_response(Slept("sleeping", level))


async def wake_up(service: Service, http: Request) -> Response:
    """Restore sleeping memory, or only that of ?tags=; stepping resumes once all is awake."""
    tags = http.query_params.getlist("tags") or None
    awake = await everywhere.wake_up(service, tags)
    return json_response(Woken("awake" if awake else "sleeping", tags))


async def is_sleeping(service: Service, http: Request) -> Response:
    """Whether the engine is paused or asleep."""
    live = service.live
    asleep = live.requests.paused or await asyncio.to_thread(lambda: live.front.is_asleep)
    return json_response({"is_sleeping": asleep})


async def release_kv_cache_memory(service: Service, http: Request) -> Response:
    """Free the KV cache until /wake_up; open requests are preempted and kept."""
    enabled = service.live.engine.args.enable_sleep_mode
    await everywhere.sleep(service, SleepOrder.checked(enabled, 1, "keep", [CACHE], "keep"))
    return json_response(Done("kv_cache_released"))


async def reload_weights(service: Service, http: Request) -> Response:
    """Reload the weights from the model's folder."""
    await asyncio.to_thread(service.live.front.client.ask, ReloadWeights())
    return json_response(Done("reloaded"))


async def update_weights(service: Service, http: Request) -> Response:
    """Refused: weights cannot be sent over HTTP."""
    raise ApiError(
        501,
        "This server takes no parameters over HTTP. Write them to the model's folder and POST "
        "/reload_weights, or use jengine.AsyncLLM's update_params in the trainer's program.",
    )


async def abort_requests(service: Service, http: Request) -> Response:
    """Abort requests by id (as in responses and X-Request-Id), or all."""
    request = await read_body(http, AbortRequest, strict=True)
    return json_response({"aborted": await everywhere.abort(service, request.request_ids)})


async def scale_elastic_ep(service: Service, http: Request) -> Response:
    """Change the number of data-parallel replicas; removed ones finish their requests first."""
    wanted = await read_body(http, ScaleRequest, strict=True)
    count, seconds = wanted.new_data_parallel_size, wanted.drain_timeout
    if service.peers.count > 1:
        raise ApiError(
            400, "Several API processes share the replicas: expected --api-server-count 1."
        )
    if seconds < 0:
        raise ApiError(
            400, f"drain_timeout={seconds:g}: expected 0 or more.", param="drain_timeout"
        )
    try:
        await asyncio.to_thread(scale_replicas, service.live.engine, count, seconds)
    except CapacityError as error:  # as vLLM: the drain took too long
        raise ApiError(408, str(error)) from error
    return json_response(Scaled(f"Scaled to {count} data parallel engines"))


async def start_profile(service: Service, http: Request) -> Response:
    """Start a JAX profiler trace in the server's profile folder."""
    try:
        folder = trace_folder(service.live.engine.args.profile_folder)
    except ConfigError as error:
        raise ApiError(
            404, "Profiling is off. Start the server with --profiler-dir DIR."
        ) from error
    await call_profiler(service, "start_profile", folder=folder)
    return json_response(Done("started"))


async def stop_profile(service: Service, http: Request) -> Response:
    """Stop the profiler and write the trace."""
    await call_profiler(service, "stop_profile")
    return json_response(Done("stopped"))


async def memory_profile(service: Service, http: Request) -> Response:
    """Device memory profile in pprof's format; ?rank= chooses a process."""
    found = await call_profiler(service, "memory_profile")
    rank = http.query_params.get("rank", "0")
    if not (rank.isascii() and rank.isdecimal() and int(rank) < len(found)):
        raise ApiError(
            400, f"rank={rank!r:.40}: expected a number below {len(found)}.", param="rank"
        )
    name = f'attachment; filename="memory-{int(rank)}.pb.gz"'
    return Response(
        found[int(rank)],
        media_type="application/octet-stream",
        headers={"Content-Disposition": name},
    )


async def call_profiler(service: Service, method: str, **arguments: str) -> list[Any]:
    """Call a profiler method in every worker; ApiError 409 if it is already on or off."""
    try:
        return await asyncio.to_thread(service.live.front.call_workers, method, arguments)
    except RequestError as error:
        raise ApiError(409, str(error)) from error


def flag(http: Request, name: str, *, usual: bool) -> bool:
    """Parse a boolean query parameter."""
    text = http.query_params.get(name)
    if text is None:
        return usual
    if text.lower() not in ("true", "false", "1", "0"):
        raise ApiError(400, f"{name}={text!r:.40}: expected true or false.", param=name)
    return text.lower() in ("true", "1")
