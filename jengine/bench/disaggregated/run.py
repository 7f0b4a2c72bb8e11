"""Runs load on the pair while servers are killed, and reports failures; measures pair and single
server first.

In: settings. Out: a result as JSON has it, with the list of what failed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jengine.bench.marathon.canary import Canary
from jengine.bench.marathon.exchange import Manner, exchange
from jengine.bench.marathon.injector import wait_until_ready
from jengine.bench.marathon.load import ClientsLoad
from jengine.bench.marathon.run import HELD, SETTLES_WITHIN, alongside
from jengine.bench.marathon.server import ServerProcess, ServerProcessFailed
from jengine.bench.marathon.watch import gauges
from jengine.bench.serve.launched import free_port
from jengine.bench.serve.measure import measure
from jengine.bench.serve.settings import LoadSettings
from jengine.bench.server_frame import flag

# Of each server: none compiles while it is measured.
WARM = ("--compilation-config.wait_for", "all")
# Of the results of a measured load.
FIGURES = ("completed", "failed", "output_throughput", "p99_itl_ms", "median_ttft_ms")
TRAVELLED = "external_prefix_cache_hits_total"


@dataclass(frozen=True, kw_only=True)
class Canaries:
    """Settings: duration, load, and interval of kills."""

    model: str
    flags: tuple[str, ...] = ()  # of each `jengine serve`
    seconds: float = flag(600.0, "with kills")
    clients: int = flag(8, "requests at once")
    kill_pause: float = flag(30.0, "seconds between kills")
    prompts: int = flag(200, "of the measured load; 0: nothing is measured")
    input_tokens: int = flag(128, "of measured prompts")
    output_tokens: int = flag(32, "of their answers")
    start_limit: float = 300.0
    most_recovery: float = 120.0


class Kills:
    """Kills the prefill and the decode server alternately, and restarts each.

    While the first is away nothing may be lost: the other one computes prompts. Requests that a
    decode server is answering end with it.
    """

    def __init__(self, pair: ServerPair, settings: Canaries) -> None:
        self._pair, self._settings = pair, settings
        self.active = False
        self.decode_is_away = False
        self.done: list[dict[str, Any]] = []

    async def go_on(self) -> None:
        """Kill until cancelled; cancel only between kills."""
        for side in itertools.cycle(("prefill", "decode")):
            await asyncio.sleep(self._settings.kill_pause)
            await self.once(side)

    async def once(self, side: str) -> None:
        """Kill one server, and wait until it serves again."""
        server: ServerProcess = getattr(self._pair, side)
        self.active, self.decode_is_away = True, side == "decode"
        try:
            began = time.monotonic()
            server.kill()
            server.start()
            limit = self._settings.start_limit
            is_back = await wait_until_ready(server, limit) and await self._pair.answers_within(
                limit
            )
            seconds = round(time.monotonic() - began, 1) if is_back else None
            self.done.append({"killed": side, "recovery_s": seconds})
        finally:
            self.active = self.decode_is_away = False


def run(settings: Canaries, folder: Path, note: Callable[[str], object]) -> dict[str, Any]:
    """Measure one server, then the pair, then run with kills."""
    flags = (*WARM, *settings.flags)
    mixed = ServerProcess(settings.model, list(flags), folder / "mixed.log")
    mixed.start()
    try:
        if not asyncio.run(wait_until_ready(mixed, settings.start_limit)):
            raise ServerProcessFailed(f"the server did not start:\n{mixed.log_text()[-2000:]}")
        note("one server that does both")
        song, alone = asyncio.run(song_of(mixed.port)), measured(settings, mixed)
    finally:
        mixed.kill()
    pair = ServerPair(settings.model, flags, folder)
    try:
        asyncio.run(pair.start(settings.start_limit))
        note("the pair")
        beside = measured(settings, pair.router)
        note(f"{settings.seconds:g} s with kills")
        found = asyncio.run(canary(settings, pair, song))
    finally:
        pair.kill()
    result = {
        "settings": {**asdict(settings), "flags": list(settings.flags)},
        "mixed": alone,
        "pair": beside,
        **found,
        "left": sum(len(one.orphans()) for one in pair.all),
    }
    return {**result, "failed": failures(settings, result)}


def measured(settings: Canaries, server: ServerProcess) -> dict[str, float] | None:
    """Throughput and latency of the measured load on any server; None if disabled."""
    if not settings.prompts:
        return None
    load = LoadSettings(
        base_url=url(server), num_prompts=settings.prompts, max_concurrency=settings.clients,
        random_input_len=settings.input_tokens, random_output_len=settings.output_tokens,
        num_warmups=4, ignore_eos=True, sampling={"temperature": 0}, disable_tqdm=True,
    )  # fmt: skip
    result = measure(load, "", lambda line: None)
    return {name: round(result[name], 2) for name in FIGURES}


async def song_of(port: int) -> Any:
    """The canary's reference answer from one server."""
    canary = Canary(port, lambda: False)
    await canary.learn()
    return canary.song


async def canary(settings: Canaries, pair: ServerPair, song: Any) -> dict[str, Any]:
    """Run load and canary requests while servers are killed."""
    kills = Kills(pair, settings)
    load = ClientsLoad(pair.router.port, settings.clients, lambda: kills.decode_is_away)
    bird = Canary(pair.router.port, lambda: kills.decode_is_away)
    bird.song = song
    travelled = 0.0
    for _ in range(2):  # the first may be of a prompt that the decode server has read before
        await bird.once()
    async with alongside(bird.sing()), alongside(kills.go_on()) as killing:
        running = asyncio.ensure_future(load.run(None))
        await asyncio.sleep(min(settings.kill_pause, settings.seconds) / 2)
        travelled = (await gauges(pair.decode.port)).get(TRAVELLED, 0.0)
        await asyncio.wait({running, killing}, timeout=settings.seconds)
        while kills.active and not killing.done():  # to the end of the last recovery
            await asyncio.sleep(0.05)
        load.stop()
        await running
    return {
        "requests": load.sent,
        "lost": load.lost[:20],
        "lost_count": len(load.lost),
        "lost_with_the_decode_server": load.lost_while_disturbed,
        "songs": bird.sung,
        "other_songs": bird.other[:5],
        "failed_songs": bird.failures[:5],
        "tokens_that_travelled": travelled,
        "kills": kills.done,
        "held": await held(pair),
    }


async def held(pair: ServerPair) -> dict[str, float | None]:
    """Resources that servers still hold when no request runs."""
    end = time.monotonic() + SETTLES_WITHIN
    while True:
        each = [await gauges(one.port) for one in (pair.prefill, pair.decode)]
        found = {
            name: None if any(name not in one for one in each) else sum(one[name] for one in each)
            for name in HELD
        }
        if not any(found.values()) or time.monotonic() > end:
            return found
        await asyncio.sleep(0.1)


def failures(settings: Canaries, result: dict[str, Any]) -> list[str]:
    """Violated expectations, as text."""
    recoveries = [one["recovery_s"] for one in result["kills"]]
    speeds = [one for one in (result["mixed"], result["pair"]) if one is not None]
    checks = {
        "requests were lost while the decode server was there": result["lost_count"],
        "the pair answers with other tokens than one server": result["other_songs"],
        "the canary failed while the decode server was there": result["failed_songs"],
        "no block travelled from one server to the other": not result["tokens_that_travelled"],
        "nothing was killed": not recoveries and settings.seconds > 2 * settings.kill_pause,
        "a server did not recover in time": any(
            one is None or one > settings.most_recovery for one in recoveries
        ),
        "requests of the measured load failed": any(one["failed"] for one in speeds),
        "something is held at the end": any(result["held"].values()),
        "a server does not tell what it holds": None in result["held"].values(),
        "processes are left": result["left"],
    }
    return [words for words, failed in checks.items() if failed]


QUICK = Manner(patience=2.0)
GLANCE = 0.1
# Seconds in which a prefill server must answer before its prompt is computed by the other one.
PATIENCE = 2.0


class RouterProcess(ServerProcess):
    """`jengine route`."""

    def __init__(self, decode: ServerProcess, prefill: ServerProcess, log: Path) -> None:
        super().__init__("", [], log)
        words = ["route", url(decode), "--prefill", url(prefill), "--port", str(self.port)]
        self.command = [sys.executable, "-m", "jengine", *words, "--health-every", "0.5"]


class ServerPair:
    """The three server processes."""

    def __init__(self, model: str, flags: tuple[str, ...], folder: Path) -> None:
        secret = secrets.token_hex(32)

        def server(role: str) -> ServerProcess:
            config = {
                "kv_connector": "ZmqConnector", "kv_role": role, "kv_port": free_port(),
                "kv_connector_extra_config": {"secret": secret, "timeout_seconds": PATIENCE},
            }  # fmt: skip
            own = ["--kv-transfer-config", json.dumps(config), *flags]
            return ServerProcess(model, own, folder / f"{role}.log")

        self.prefill, self.decode = server("kv_producer"), server("kv_consumer")
        self.router = RouterProcess(self.decode, self.prefill, folder / "route.log")

    @property
    def all(self) -> tuple[ServerProcess, ...]:
        """The processes, dependencies first."""
        return self.prefill, self.decode, self.router

    async def start(self, seconds: float) -> None:
        """Start all, and wait until the router responds."""
        for one in self.all:
            one.start()
        for one in (self.prefill, self.decode):
            if not await wait_until_ready(one, seconds):
                raise ServerProcessFailed(f"a server did not start:\n{one.log_text()[-2000:]}")
        if not await self.answers_within(seconds):
            raise ServerProcessFailed(
                f"the router did not start:\n{self.router.log_text()[-2000:]}"
            )

    async def answers_within(self, seconds: float) -> bool:
        """Wait until the router has a healthy server; False on timeout."""
        for _ in range(int(seconds / GLANCE)):
            if (await exchange(self.router.port, "GET", "/health", manner=QUICK)).status == 200:
                return True
            await asyncio.sleep(GLANCE)
        return False

    def kill(self) -> None:
        """Kill all processes."""
        for one in self.all:
            one.kill()


def url(server: ServerProcess) -> str:
    """Base URL of a server."""
    return f"http://127.0.0.1:{server.port}"
