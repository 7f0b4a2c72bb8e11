"""Runs the fuzz test: abusive clients, normal clients, and the verdict.

In: settings. Out: a result as JSON has it, with the list of what failed and the numbers of the
requests that did it, by which they can be made again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jengine.bench.marathon.exchange import Manner, SeenReply, exchange
from jengine.bench.marathon.injector import wait_until_ready
from jengine.bench.marathon.run import alongside, end_of
from jengine.bench.marathon.server import ServerProcess, ServerProcessFailed
from jengine.bench.marathon.watch import Watch
from jengine.bench.server_frame import flag
from jengine.bench.strangers.bodies import Bodies

SETTLES_WITHIN = 10.0  # seconds in which memory comes back
SHOWN = 20
NO_ERRORS = (501, 503)  # a feature that is not built; no room now, with Retry-After
UNREAD, CUT = 64 * 1024, ("ConnectionReset", "BrokenPipe")
ABSENT = (403, 404)  # routes that this server does not offer
LEAVING = Manner(leaves_after=0)
HONEST = (
    ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 1}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}),
)


@dataclass(frozen=True, kw_only=True)
class StrangersLimits:
    """Limits that must hold during the test."""

    most_latency: float = 2.0  # seconds until a bystander is answered
    most_growth_mb: float = 300.0  # of the server's memory, once it has settled


@dataclass(frozen=True)
class SearchSettings(StrangersLimits):
    """Settings: duration, concurrency, and which requests."""

    model: str
    flags: tuple[str, ...] = ()  # of `jengine serve`
    seconds: float = flag(60.0, "how long")
    strangers: int = flag(8, "requests at once")
    seed: int = flag(0, "of all requests")
    first: int = flag(0, "number of the first request")
    start_limit: float = 300.0


class Strangers:
    """Clients that send fuzzed requests."""

    def __init__(self, port: int, bodies: Bodies, first: int) -> None:
        self.sent = 0
        self.statuses: Counter[str] = Counter()
        self.errors: list[str] = []
        self.next = first
        self.unanswered: set[int] = set()  # numbers of the requests under way
        self._port = port
        self._bodies = bodies

    async def attack(self) -> None:
        """Send until cancelled."""
        while True:
            number, self.next = self.next, self.next + 1
            case = self._bodies.case(number)
            manner = LEAVING if case.leaves else Manner(patience=60.0)
            self.unanswered.add(number)
            reply = await exchange(self._port, "POST", case.path, case.body, manner)
            self.unanswered.discard(number)
            self.sent += 1
            self.statuses[f"{case.path}: {reply.status}"] += 1
            if not case.leaves and is_error(reply, len(case.body)):
                told = reply.problem or reply.body[:300]
                self.errors.append(f"request {number} ({case.path}): {reply.status} {told}")


class Bystanders:
    """Normal clients with one-token requests, and their latencies."""

    def __init__(self, port: int, strangers: Strangers, most_latency: float) -> None:
        self.seconds: list[float] = []
        self.failures: list[str] = []
        self.late: list[dict[str, Any]] = []  # answers beyond `most_latency`
        self._port = port
        self._strangers = strangers
        self._most_latency = most_latency

    async def ask(self, path: str, body: dict[str, Any]) -> None:
        """Send until cancelled."""
        while True:
            began, first = time.monotonic(), self._strangers.next
            beside = set(self._strangers.unanswered)
            reply = await exchange(self._port, "POST", path, body, Manner(patience=30.0))
            self.seconds.append(waited := time.monotonic() - began)
            if waited > self._most_latency:
                beside.update(range(first, self._strangers.next))
                self.late.append({"seconds": round(waited, 3), "beside": sorted(beside)})
            if reply.status != 200:
                self.failures.append(f"{path}: {reply.status} {reply.problem or reply.body[:200]}")
            await asyncio.sleep(0.1)


def is_error(reply: SeenReply, size: int) -> bool:
    """Whether the response is the server's fault: no response, or an unjustified 5xx. A large body
    may be refused before it is fully read."""
    if reply.status == 503:
        return "retry-after" not in reply.headers
    if reply.status == 0:
        return not (size > UNREAD and reply.problem.startswith(CUT))
    return reply.status >= 500 and reply.status not in NO_ERRORS


async def run(
    search: SearchSettings, log: Path, env: dict[str, str] | None = None
) -> dict[str, Any]:
    """Run the test. The server is killed in the end, also after an exception here."""
    server = ServerProcess(search.model, list(search.flags), log, env)
    server.start()
    try:
        if not await wait_until_ready(server, search.start_limit):
            raise ServerProcessFailed(f"the server did not start:\n{server.log_text()[-2000:]}")
        return await searched(search, server)
    finally:
        server.kill()


async def searched(search: SearchSettings, server: ServerProcess) -> dict[str, Any]:
    """Run the test on a ready server."""
    document = json.loads((await exchange(server.port, "GET", "/openapi.json")).body)
    bodies = Bodies(document, search.seed)
    for path, (_, example) in tuple(bodies.routes.items()):
        if (await exchange(server.port, "POST", path, example)).status in ABSENT:
            del bodies.routes[path]
    strangers = Strangers(server.port, bodies, search.first)
    bystanders = Bystanders(server.port, strangers, search.most_latency)
    watch = Watch(server, lambda: False)
    for path, body in HONEST:  # compiles what they need
        await exchange(server.port, "POST", path, body)
    before = megabytes(server)
    async with asyncio.timeout(None), alongside(watch.watch(0.5)):
        work = [bystanders.ask(*one) for one in HONEST]
        work += [strangers.attack() for _ in range(search.strangers)]
        tasks = [asyncio.ensure_future(one) for one in work]
        done, _ = await asyncio.wait(
            tasks, timeout=search.seconds, return_when=asyncio.FIRST_COMPLETED
        )
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()  # raises what ended it
    after = await settled(server, before + search.most_growth_mb)
    ending = await end_of(server)
    watch.scan(disturbed=False)
    seconds = sorted(bystanders.seconds)
    result: dict[str, Any] = {
        "settings": {**asdict(search), "flags": list(search.flags)},
        "requests": strangers.sent,
        "statuses": dict(sorted(strangers.statuses.items())),
        "errors": strangers.errors[:SHOWN],
        "bystanders": {
            "answered": len(seconds) - len(bystanders.failures),
            "failures": bystanders.failures[:SHOWN],
            "median_s": round(seconds[len(seconds) // 2], 3) if seconds else None,
            "slowest_s": round(seconds[-1], 3) if seconds else None,
            "late": bystanders.late[:SHOWN],
        },
        "resident_mb": {
            "before": before,
            "most": max(one.resident_mb for one in watch.samples),
            "after": after,
        },
        "forbidden_log_lines": watch.forbidden[:SHOWN],
        **ending,
    }
    return {**result, "failed": failures(search, result)}


def megabytes(server: ServerProcess) -> float:
    """RSS of all processes of the server."""
    return round(server.resident_bytes() / 2**20, 1)


async def settled(server: ServerProcess, enough: float) -> float:
    """The server's memory once it has dropped back, or at the deadline."""
    end = time.monotonic() + SETTLES_WITHIN
    while (found := megabytes(server)) > enough and time.monotonic() < end:
        await asyncio.sleep(0.2)
    return found


def failures(search: StrangersLimits, result: dict[str, Any]) -> list[str]:
    """Violated expectations, as text."""
    bystanders, memory = result["bystanders"], result["resident_mb"]
    checks = {
        "errors of the server": bool(result["errors"]),
        "bystanders were not answered": bool(bystanders["failures"] or not bystanders["answered"]),
        f"a bystander waited for more than {search.most_latency:g} s": (
            (bystanders["slowest_s"] or 0.0) > search.most_latency
        ),
        f"memory grew by more than {search.most_growth_mb:g} MB": (
            memory["after"] - memory["before"] > search.most_growth_mb
        ),
        "forbidden lines in the log": bool(result["forbidden_log_lines"]),
        "the server did not end as it must": result["exit_status"] != 0 or result["orphans"] > 0,
    }
    return [what for what, failed in checks.items() if failed]
