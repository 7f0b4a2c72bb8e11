"""A server on a real socket in a thread of this process, and clients that misbehave on purpose."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import uvloop

from jengine.assembly.engine import Engine
from jengine.engine.core import EngineCore
from jengine.engine.in_process import InProcessClient
from jengine.server.app import make_app
from jengine.server.peers.channel import Peers
from jengine.server.run import uvicorn_config
from jengine.server.serving.peer_answers import answer_peer
from jengine.server.serving.service import Service
from jengine.server.settings import ServerSettings
from tests.client.scripted_server import QuickServer
from tests.engine.scripted import Script, script_of
from tests.server.serving import NAME, letters_engine

COMPLETIONS = "/v1/completions"
# Seconds in which whatever must happen happens, also on a machine that has other work.
PATIENCE = 60.0


class Listening(NamedTuple):
    """A server that listens, with its insides for tests to look at."""

    port: int
    service: Service
    engine: Engine
    loop: asyncio.AbstractEventLoop

    @property
    def script(self) -> Script:
        """The scripted device."""
        return script_of(self.engine)

    @property
    def held(self) -> tuple[int, int, int, float]:
        """Running and waiting requests, places in the queue, share of the cache in use."""
        client = self.engine.client
        assert isinstance(client, InProcessClient) and isinstance(client.core, EngineCore)
        with client._between_steps():
            client.core.scheduler.cache.check()
            counts = client.core.counts()
        return counts.running, counts.waiting, self.service.open_requests, counts.cache_usage

    def wait_until_idle(self) -> None:
        """Return when nothing is held; fail if something stays."""
        until(lambda: self.held == (0, 0, 0, 0.0), lambda: f"held: {self.held}")

    def on_loop(self, ask: Callable[[], Any]) -> Any:
        """What a function returns on the server's event loop."""

        async def work() -> Any:
            return ask()

        return asyncio.run_coroutine_threadsafe(work(), self.loop).result(PATIENCE)

    def connect(self, **body: Any) -> Client:
        """A connection on which a request for a completion has been sent."""
        return Client(self.port).send(COMPLETIONS, body)


def until(
    holds: Callable[[], Any],
    otherwise: Callable[[], str] = lambda: "it never came to that",
    seconds: float = PATIENCE,
) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, otherwise()
        time.sleep(0.005)


@contextmanager
def listening(
    engine: Engine | None = None, peers: Peers | None = None, **settings: Any
) -> Iterator[Listening]:
    """A server over a scripted engine, which is shut down at the end."""
    engine = engine or letters_engine()
    settings = {"served_model_name": (NAME,), "disable_uvicorn_access_log": True, **settings}
    given = ServerSettings(**settings)
    app = make_app(engine, given, peers)
    sock = socket.create_server(("127.0.0.1", 0))
    server = QuickServer(uvicorn_config(app, given))
    loops: list[asyncio.AbstractEventLoop] = []

    async def work() -> None:
        loops.append(asyncio.get_running_loop())
        service = app.state.service
        await service.peers.serve(lambda question: answer_peer(service, question))
        await server.serve([sock])

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work())

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: server.started, lambda: "the server does not start")
    try:
        yield Listening(sock.getsockname()[1], app.state.service, engine, loops[0])
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        app.state.service.shutdown()
        assert not thread.is_alive(), "the server does not end"


class Client:
    """One connection, byte by byte."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.got = b""

    def send(self, path: str, body: Any, *headers: str) -> Client:
        """Send a request with this JSON."""
        data = json.dumps(body).encode()
        head = [
            f"POST {path} HTTP/1.1", "Host: test", "Content-Type: application/json",
            f"Content-Length: {len(data)}", *headers,
        ]  # fmt: skip
        self.sock.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + data)
        return self

    def read_until(self, text: bytes) -> bytes:
        """Read until this has come, or the end."""
        while text not in self.got:
            piece = self.sock.recv(65536)
            if not piece:
                break
            self.got += piece
        return self.got

    @property
    def status(self) -> int:
        """The status of the response; 0 if the connection was closed without one."""
        self.read_until(b"\r\n\r\n")
        return int(self.got.split(b" ")[1]) if self.got.startswith(b"HTTP/") else 0

    def leave(self) -> None:
        """Close the connection, whatever is unread."""
        self.sock.close()
