"""Calls a route's handler without a connection.

In: a path and a body. Out: the response that a client would get, errors included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from jengine.server.batches.lines import Ask
from jengine.server.errors import ApiError

# Answers a request to one route.
Route = Callable[[Request], Awaitable[Response]]


def asker(routes: Mapping[str, Route], least_urgent: int | None = None) -> Ask:
    """Make a function that calls routes. `least_urgent`: requests run at this priority or a lower
    one."""

    async def ask(path: str, body: bytes, request_id: str) -> Response:
        if path not in routes:
            return ApiError(
                404,
                f"url={path.lstrip('/')[:100]!r}: expected / and one of "
                f"{', '.join(one[1:] for one in routes)}.",
                param="url",
            ).response
        http = request_of(path, body, request_id)
        http.state.least_urgent = least_urgent
        response = await routes[path](http)
        if response.media_type != "application/json":
            return ApiError(
                400, "The answer is no JSON. Choose another encoding_format.",
                param="encoding_format",
            ).response  # fmt: skip
        return response

    return ask


def request_of(path: str, body: bytes, request_id: str) -> Request:
    """Build a Starlette request for this body whose client never disconnects."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if unread:
            return unread.pop()
        return await asyncio.get_running_loop().create_future()

    headers = [(b"content-type", b"application/json"), (b"x-request-id", request_id.encode())]
    scope: dict[str, Any] = {
        "type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers,
    }  # fmt: skip
    return Request(scope, receive)
