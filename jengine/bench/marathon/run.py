"""Runs load, canary, faults and sampling together, and reports failures.

In: settings. Out: a result as JSON has it, with the list of what failed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jengine.bench.marathon.canary import Canary
from jengine.bench.marathon.injector import Injector, wait_until_ready
from jengine.bench.marathon.load import ClientsLoad
from jengine.bench.marathon.server import ServerProcess, ServerProcessFailed
from jengine.bench.marathon.watch import Watch, gauges
from jengine.bench.server_frame import flag

# Seconds after the last request in which the server must be idle, and end when it is asked to.
SETTLES_WITHIN = 15.0
ENDS_WITHIN = 60.0


@dataclass(frozen=True, kw_only=True)
class Marathon:
    """Settings: duration, load and faults."""

    model: str
    flags: tuple[str, ...] = ()  # of `jengine serve`
    seconds: float = flag(600.0, "how long")
    requests: int | None = flag(None, "so many instead, without faults", int)
    clients: int = flag(16, "requests at once")
    fault_pause: float = flag(45.0, "seconds between faults; 0: none")
    stop_seconds: float = flag(5.0, "that a process stays stopped")
    sample_pause: float = 1.0
    canary_pause: float = 0.5
    start_limit: float = 300.0
    most_recovery: float = 30.0

    @property
    def is_calm(self) -> bool:
        """Whether no faults are injected."""
        return bool(self.requests) or not self.fault_pause


class Runners:
    """Load, canary, sampling and fault injector of one run, over one server."""

    def __init__(self, marathon: Marathon, server: ServerProcess) -> None:
        self.injector = Injector(
            server, start_limit=marathon.start_limit, stop_seconds=marathon.stop_seconds
        )
        self.load = ClientsLoad(server.port, marathon.clients, lambda: self.injector.killing)
        self.canary = Canary(server.port, lambda: self.injector.killing, marathon.canary_pause)
        self.watch = Watch(server, lambda: self.injector.active)


async def run(marathon: Marathon, log: Path, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Start a server, run load and faults, end it, and return the result. Always kills the
    server."""
    server = ServerProcess(marathon.model, list(marathon.flags), log, env)
    began = time.monotonic()
    server.start()
    try:
        if not await wait_until_ready(server, marathon.start_limit):
            raise ServerProcessFailed(f"the server did not start:\n{server.log_text()[-2000:]}")
        parts = Runners(marathon, server)
        start_seconds = time.monotonic() - began
        began = time.monotonic()
        await parts.canary.learn()
        await under_load(marathon, parts)
        seconds = time.monotonic() - began
        ending = await end_of(server)
        parts.watch.scan(disturbed=False)
    finally:
        server.kill()
    return result_of(marathon, parts, ending, seconds=seconds, start_seconds=start_seconds)


async def under_load(marathon: Marathon, parts: Runners) -> None:
    """Run load, canary, sampling and faults until time or requests run out."""
    async with (
        alongside(parts.watch.watch(marathon.sample_pause)),
        alongside(parts.canary.sing()),
    ):
        load = asyncio.ensure_future(parts.load.run(marathon.requests))
        if marathon.is_calm:
            await asyncio.wait({load}, timeout=None if marathon.requests else marathon.seconds)
        else:
            async with alongside(parts.injector.inject(marathon.fault_pause)) as injecting:
                await asyncio.wait({load, injecting}, timeout=marathon.seconds)
                while parts.injector.active:  # to the end of the last recovery
                    await asyncio.sleep(0.05)
        parts.load.stop()
        await load
        await parts.watch.look()


@asynccontextmanager
async def alongside(work: Any) -> AsyncIterator[asyncio.Task[None]]:
    """Run a coroutine for the duration of the block; its errors are raised there."""
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def end_of(server: ServerProcess) -> dict[str, Any]:
    """Resources held once idle, and how the server shuts down."""
    end = time.monotonic() + SETTLES_WITHIN
    found = await gauges(server.port)
    while time.monotonic() < end and any(map(found.get, HELD)):
        await asyncio.sleep(0.1)
        found = await gauges(server.port)
    try:
        status: int | None = await asyncio.to_thread(server.terminate, ENDS_WITHIN)
    except ServerProcessFailed:
        status = None
    return {
        "waited_for_compiler_s": found.get("step_compile_wait_seconds_total"),
        "held": {name: found.get(name) for name in HELD},
        "exit_status": status,
        "orphans": len(server.orphans()),
    }


HELD = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


def result_of(
    marathon: Marathon, parts: Runners, ending: dict[str, Any], **more: float
) -> dict[str, Any]:
    load, canary, watch = parts.load, parts.canary, parts.watch
    result: dict[str, Any] = {
        "settings": {**asdict(marathon), "flags": list(marathon.flags)},
        **{name: round(value, 1) for name, value in more.items()},
        "requests": load.sent,
        "endings": dict(sorted(load.endings.items())),
        "lost": load.lost[:20],
        "lost_count": len(load.lost),
        "lost_while_disturbed": load.lost_while_disturbed,
        "canary": {
            "sung": canary.sung,
            "other_tokens": canary.other[:5],
            "calm": canary.calm,
            "calm_failures": canary.failures[:5],
            "calm_failure_count": len(canary.failures),
            "disturbed": canary.disturbed,
            "disturbed_failures": canary.disturbed_failures,
        },
        "injections": [one.as_dict() for one in parts.injector.injections],
        "forbidden_log_lines": watch.forbidden[:20],
        # A server that was started again begins anew.
        "memory_slope_mib_per_minute": (watch.memory_slope() if marathon.is_calm else None),
        "resident_mb": [one.resident_mb for one in watch.samples[:: len(watch.samples) // 60 + 1]],
        "kv_usage_growth_points": watch.usage_growth(),
        **ending,
    }
    return {**result, "failed": failures(marathon, result)}


def failures(marathon: Marathon, result: dict[str, Any]) -> list[str]:
    """Violated expectations, as text."""
    canary, slope = result["canary"], result["memory_slope_mib_per_minute"]
    recoveries = [one["recovery_s"] for one in result["injections"]]
    lasts = result["seconds"] >= 120  # memory settles in the first minute
    checks = {
        "requests were lost": result["lost_count"],
        "the canary sang other tokens": canary["other_tokens"],
        "the canary failed more often than 1 in 100": (
            canary["calm_failure_count"] > canary["calm"] / 100
        ),
        "the canary never sang": not canary["calm"],
        "a server did not recover in time": any(
            one is None or one > marathon.most_recovery for one in recoveries
        ),
        "a process did not end as it must": any(one["problem"] for one in result["injections"]),
        "the log has lines that must not be there": result["forbidden_log_lines"],
        "memory grows": lasts and slope is not None and slope >= 1,
        "the KV cache fills up": (result["kv_usage_growth_points"] or 0) > 10,
        "steps waited for the compiler, or that is not told": result["waited_for_compiler_s"] != 0,
        "something is held at the end": any(result["held"].values()),
        "the server does not tell what it holds": None in result["held"].values(),
        "the server did not end with status 0": result["exit_status"] != 0,
        "processes are left": result["orphans"],
    }
    return [words for words, failed in checks.items() if failed]
