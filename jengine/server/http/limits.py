"""Limits of request heads and bodies, enforced by an ASGI middleware.

In: every request. Out: the request with a body that raises once it is too long, or 431 or 413.
uvicorn's h11 bounds the bytes of a head while it arrives, but does not count headers.

A client that is still sending when the connection closes sees a broken pipe instead of the 413, and
retries. So some of the rest is read and dropped first ("lingering close").
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jengine.server.errors import ApiError
from jengine.server.http.root_path import route_path
from jengine.server.settings import ServerSettings

# Uploads go to a file and have a limit of their own.
UPLOADS = "/v1/files"
# Lingering close: drop at most this multiple of the limit, for so long, until a silence of so long.
DROPPED_TIMES, DROPPING_S, SILENCE_S = 4, 5.0, 0.3


class RequestLimits:
    """ASGI middleware: refuses requests whose head or body is too large."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app = app
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        settings = self.settings
        uploads = settings.batch_dir is not None and route_path(scope) == UPLOADS
        most = settings.max_batch_file_bytes if uploads else settings.max_body_bytes
        refusal = self._refusal(scope["headers"], most)
        if refusal is not None:
            if refusal.status == 413 and not expects_leave(scope):
                await drop_rest(receive, DROPPED_TIMES * most)
            await refusal.response(scope, receive, send)
            return
        await self.app(scope, bounded(receive, most), send)

    def _refusal(self, headers: list[tuple[bytes, bytes]], most: int) -> ApiError | None:
        settings = self.settings
        if len(headers) > settings.max_header_count:
            return ApiError(
                431,
                f"The request has {len(headers)} headers; at most {settings.max_header_count} are "
                "allowed.",
            )
        size = sum(len(name) + len(value) + 4 for name, value in headers)
        if size > settings.max_header_bytes:
            return ApiError(
                431,
                f"The headers have {size} bytes; at most {settings.max_header_bytes} are allowed.",
            )
        length = dict(headers).get(b"content-length", b"")
        if length.isdigit() and int(length) > most:
            return too_large(most)
        return None


def bounded(receive: Receive, most: int) -> Receive:
    """`receive` that raises an error 413 once a body is longer than `most` bytes."""
    size = 0

    async def counted() -> Message:
        nonlocal size
        message: Any = await receive()
        size += len(message.get("body", b""))
        if size > most:
            if message.get("more_body"):
                await drop_rest(receive, DROPPED_TIMES * most)
            raise too_large(most)
        return message

    return counted


def expects_leave(scope: Scope) -> bool:
    """Whether the request has an Expect header (100-continue): reading its body would send the
    100."""
    return any(name == b"expect" for name, _ in scope["headers"])


async def drop_rest(receive: Receive, most: int) -> None:
    """Read and drop at most `most` bytes of a body, within the time limits above."""
    try:
        async with asyncio.timeout(DROPPING_S):
            while most > 0:
                message = await asyncio.wait_for(receive(), SILENCE_S)
                most -= len(message.get("body", b""))
                if not message.get("more_body"):
                    return
    except TimeoutError:
        pass  # a slow or silent client can read the refusal


def too_large(most: int) -> ApiError:
    """ApiError 413. Closes the connection, since a body may not be read to its end."""
    return ApiError(
        413,
        f"The body is larger than {most} bytes, the most that is allowed. Send less at once.",
        headers={"Connection": "close"},
    )
