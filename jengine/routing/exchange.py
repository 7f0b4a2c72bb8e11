"""One request to one server, whose response is forwarded as it arrives.

In: method, path, headers, body. Out: status and headers, then the parts of the body.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping

from jengine.client.errors import ServerFailed
from jengine.client.response_reader import ResponseReader
from jengine.routing.server_pool import Backend, ServerPool

# Hop-by-hop headers, and those that the router sets itself.
HOP = {
    "connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding",
    "upgrade", "expect", "accept-encoding",
}  # fmt: skip


class Reply:
    """A server's response, received incrementally."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._begun = asyncio.Event()
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._failure: ServerFailed | None = None
        self._task: asyncio.Task[None] | None = None

    def receive(self, response: ResponseReader, body: bytes, now: float) -> None:
        """Add a part of the response."""
        self.status, self.headers = response.status, response.headers
        self._begun.set()
        if body:
            self._parts.put_nowait(body)

    async def begin(self, backend: Backend, request: bytes) -> None:
        """Send a request and wait for the response's head. Raises ServerFailed."""
        self._task = asyncio.ensure_future(self._run(backend, request))
        await self._begun.wait()
        if not self.status:
            await self._task
            raise self._failure or ServerFailed(f"{backend.address} did not answer.")

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """Yield the body. Raises ServerFailed if the connection breaks."""
        try:
            while (part := await self._parts.get()) is not None:
                yield part
            if self._failure is not None:
                raise self._failure
        finally:
            self.cancel()

    async def whole(self) -> bytes:
        return b"".join([part async for part in self.parts()])

    def cancel(self) -> None:
        """Stop reading and close the connection, as the client has disconnected."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self, backend: Backend, request: bytes) -> None:
        try:
            await backend.connections.exchange(request, self)
        except ServerFailed as error:
            self._failure = error
        finally:
            self._parts.put_nowait(None)
            self._begun.set()


def encoded(
    backend: Backend, method: str, path: str, headers: Mapping[str, str], body: bytes
) -> bytes:
    """Serialise a request."""
    kept = {name: value for name, value in headers.items() if name.lower() not in HOP}
    own = {"host": backend.address.authority, "content-length": str(len(body)), **kept}
    lines = [f"{method} {backend.address.path(path)} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in own.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


async def asked(backend: Backend, path: str, seconds: float) -> int:
    """Status of a GET; 0 on failure or timeout."""
    reply = Reply()
    try:
        async with asyncio.timeout(seconds):
            await reply.begin(backend, encoded(backend, "GET", path, {}, b""))
            await reply.whole()
    except (ServerFailed, TimeoutError):
        reply.cancel()
        return 0
    return reply.status


async def look(backend: Backend, seconds: float, path: str = "/health") -> None:
    """Check one server and record whether it is up."""
    backend.is_up = 0 < await asked(backend, path, seconds) < 500


async def watch(pool: ServerPool, every: float) -> None:
    """Check all servers every `every` seconds, until cancelled."""
    while True:
        await asyncio.gather(*(look(backend, max(every, 1.0)) for backend in pool.backends))
        await asyncio.sleep(every)
