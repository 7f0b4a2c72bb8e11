"""Writes stream chunks directly to the transport.

In: a request's scope and ASGI `send`. Out: a function that sends a part of the body, with
backpressure. Head and end of the response go through ASGI `send`. Our protocol offers the
transport: h11 keeps no state for body chunks, but costs more per chunk than everything else
together. Under other servers and in tests there is only `send`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from starlette.types import Scope, Send

# Key of the write function in the scope's extensions.
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
