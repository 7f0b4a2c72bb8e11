"""Fault injector: suspends (SIGSTOP) and kills processes of a server.

In: a server. Out: what was done, and how long it took until requests were answered again. While a
fault lasts, and until the server answers again, `active` is true. Only a process that is killed
(`killing`) may cost requests: those that meet a stopped one are late.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from jengine.bench.marathon.exchange import Manner, exchange
from jengine.bench.marathon.server import ServerProcess

# The server must have ended by itself so long after its engine was killed.
ENDS_WITHIN = 5.0
QUICK = Manner(patience=2.0)
FAULTS = ("stop engine", "kill engine", "stop server", "kill server")


@dataclass(frozen=True)
class Injection:
    """One fault and its outcome."""

    fault: str
    at: float  # seconds since the beginning
    recovery_s: float | None  # from its end, or from the start of a new server; None: never
    exit_status: int | None = None  # of the server, where the fault ends it
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Injector:
    """Injects one fault after another, with pauses."""

    def __init__(self, server: ServerProcess, *, start_limit: float, stop_seconds: float) -> None:
        self.server = server
        self.start_limit = start_limit
        self.stop_seconds = stop_seconds
        self.active = False
        self.killing = False
        self.injections: list[Injection] = []
        self._began = time.monotonic()

    async def inject(self, pause: float) -> None:
        """Inject until cancelled; cancellation takes effect at once."""
        for fault in itertools.cycle(FAULTS):
            await asyncio.sleep(pause)
            await self.once(fault)

    async def once(self, fault: str) -> None:
        """Inject one fault, and wait for recovery."""
        at = time.monotonic() - self._began
        what, _, where = fault.partition(" ")
        self.active, self.killing = True, what == "kill"
        try:
            engines = self.server.engines() if where == "engine" else []
            target = engines[0] if engines else psutil.Process(self.server.process.pid)
            if what == "stop":
                status, problem = None, await self._stop(target)
            else:
                status, problem = await self._kill(target)
            seconds = await self._recovery()
            self.injections.append(Injection(fault, round(at, 1), seconds, status, problem))
        finally:
            self.active = self.killing = False

    async def _stop(self, target: psutil.Process) -> str:
        try:
            target.send_signal(signal.SIGSTOP)
            await asyncio.sleep(self.stop_seconds)
        finally:
            target.send_signal(signal.SIGCONT)
        return ""

    async def _kill(self, target: psutil.Process) -> tuple[int | None, str]:
        """Kill one process, check that the others exit by themselves, and start a new server."""
        self.server.family()
        target.kill()
        problem = ""
        try:
            status = await asyncio.to_thread(self.server.wait_until_ended, ENDS_WITHIN)
        except RuntimeError as error:
            status, problem = None, str(error)
        if orphans := self.server.orphans():
            problem += f" {len(orphans)} processes are left: {orphans}"
        if status == 0:
            problem += " the exit status is 0, as if nothing had happened"
        self.server.kill()
        self.server.start()
        return status, problem.strip()

    async def _recovery(self) -> float | None:
        """Seconds until the server is ready; None if it does not recover."""
        began = time.monotonic()
        while time.monotonic() - began < self.start_limit:
            if await is_ready(self.server.port):
                return round(time.monotonic() - began, 2)
            await asyncio.sleep(0.05)
        return None


async def is_ready(port: int) -> bool:
    return (await exchange(port, "GET", "/health/ready", manner=QUICK)).status == 200


async def wait_until_ready(server: ServerProcess, seconds: float) -> bool:
    """Wait for a newly started server; False if it exits or times out."""
    end = time.monotonic() + seconds
    while server.is_running and time.monotonic() < end:
        if await is_ready(server.port):
            return True
        await asyncio.sleep(0.05)
    return False
