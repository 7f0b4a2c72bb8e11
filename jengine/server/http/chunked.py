"""Writes stream chunks straight to the connection.

In: the scope and the `send` of a request. Out: a function that sends a part of the body and waits
while the client's buffer is full. Head and end of the response go through ASGI `send`. Our protocol
offers the transport: h11 keeps no state of body chunks, but costs more per chunk than everything
else together. Other servers, and tests, have `send` only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from starlette.types import Scope, Send

# Where the short way is among the extensions of a scope.
EXTENSION = "jengine.chunks"
Write = Callable[[bytes], Awaitable[None]]


class Flow(Protocol):
    """Write-side flow control of a connection."""

    write_paused: bool

    async def drain(self) -> None:
        """Wait until the write buffer is below its high-water mark."""
        ...


class ChunkWriter:
    """Writes chunks of an HTTP/1.1 chunked body directly to the transport, past ASGI."""

    def __init__(self, transport: asyncio.Transport, flow: Flow) -> None:
        self._transport = transport
        self._flow = flow

    async def write(self, part: bytes) -> None:
        """Send a non-empty chunk. No-op once the client has disconnected."""
        if self._flow.write_paused:
            await self._flow.drain()
        if not self._transport.is_closing():
            self._transport.write(b"%x\r\n%b\r\n" % (len(part), part))


def offer(scope: Scope, transport: asyncio.Transport, flow: Flow) -> None:
    """Put the transport into the ASGI scope, so that responses can use ChunkWriter."""
    if scope["http_version"] == "1.1":
        writer = ChunkWriter(transport, flow)
        scope["extensions"] = {**scope.get("extensions", {}), EXTENSION: writer.write}


def writer_of(scope: Scope, send: Send) -> Write:
    """Return the fastest way to send body chunks: the transport if offered, else ASGI `send`."""

    async def write(part: bytes) -> None:
        await send({"type": "http.response.body", "body": part, "more_body": True})

    return scope.get("extensions", {}).get(EXTENSION, write)
