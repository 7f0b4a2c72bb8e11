"""A prefill server, a decode server, and the router in front of them.

In: a model and flags. Out: processes, and the port of the router. Must not know load or faults.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from pathlib import Path

from jengine.bench.marathon.exchange import Manner, exchange
from jengine.bench.marathon.injector import wait_until_ready
from jengine.bench.marathon.server import ServerFailed, ServerProcess
from jengine.bench.serve.launched import free_port

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


class Pair:
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
                raise ServerFailed(f"a server did not start:\n{one.log_text()[-2000:]}")
        if not await self.answers_within(seconds):
            raise ServerFailed(f"the router did not start:\n{self.router.log_text()[-2000:]}")

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
