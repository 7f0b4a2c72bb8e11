"""Server-sent events: a response whose chunks are sent as the engine makes them.

In: an async iterator of encoded chunks. Out: an ASGI response. Nothing is sent before the first
chunk, so earlier failures are ordinary HTTP errors, unless a keep-alive comment is due before.
Later errors are sent within the stream. When the client disconnects, the iterator is closed at
once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from jengine.server.errors import ClientLeft, api_error
from jengine.server.http.chunked import Write, writer_of
from jengine.server.http.disconnect import client_leaves, ended
from jengine.server.http.events import event

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
HEADERS = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}

Chunks = AsyncGenerator[bytes, None]


class EventStream(Response):
    """SSE response. The first chunk may be complete already, or its client have disconnected."""

    media_type = "text/event-stream"

    def __init__(
        self,
        first: asyncio.Future[bytes],
        rest: Chunks,
        leaving: asyncio.Future[None],
        keep_alive: float,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(HEADERS)
        self._first = first
        self._rest = rest
        self._leaving = leaving
        self._keep_alive = keep_alive
        self.when_over: Callable[[], None] = lambda: None  # called once, however it ends
        self.end = DONE  # sent after the last chunk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send, writer_of(scope, send)))
        try:
            await asyncio.wait({sending, self._leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            await ended(sending, self._leaving, self._first)
            await self._rest.aclose()
            self.when_over()

    async def _send(self, send: Send, write: Write) -> None:
        headers = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(headers)
        try:
            if self._keep_alive:
                await self._send_with_pings(write)
            else:
                await write(await self._first)
                async for chunk in self._rest:
                    await write(chunk)
        except Exception as error:  # noqa: BLE001 - the status has been sent: the stream tells it
            await write(event(api_error(error).body))
        await send({"type": "http.response.body", "body": self.end, "more_body": False})

    async def _send_with_pings(self, write: Write) -> None:
        waiting = self._first
        try:
            while True:
                await asyncio.wait({waiting}, timeout=self._keep_alive)
                if not waiting.done():
                    await write(PING)
                    continue
                await write(waiting.result())
                waiting = asyncio.ensure_future(anext(self._rest))
        except StopAsyncIteration:
            return
        finally:
            await ended(waiting)


async def stream_response(receive: Receive, chunks: Chunks, keep_alive: float) -> EventStream:
    """Return an SSE response once the first chunk exists, or the first keep-alive is due.

    An exception before that is raised, so that it gets its HTTP status.
    """
    first: asyncio.Future[bytes] = asyncio.ensure_future(anext(chunks))
    leaving = asyncio.ensure_future(client_leaves(receive))
    try:
        await asyncio.wait(
            {first, leaving}, timeout=keep_alive or None, return_when=asyncio.FIRST_COMPLETED
        )
        if leaving.done() and not first.done():
            raise ClientLeft
        if first.done():
            first.result()
    except BaseException:
        await ended(first, leaving)
        with suppress(RuntimeError):  # already being closed
            await chunks.aclose()
        raise
    return EventStream(first, chunks, leaving, keep_alive)
