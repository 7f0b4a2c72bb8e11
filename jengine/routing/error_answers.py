"""Bounded request bodies, and error responses in OpenAI's form."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from jengine.errors import ConfigError

MOST_BODY = 64 * 2**20  # bytes


async def body_of(request: Request) -> bytes:
    """Read a request's body. Raises ConfigError as soon as it exceeds the limit."""
    parts, total = list[bytes](), 0
    async for part in request.stream():
        total += len(part)
        if total > MOST_BODY:
            raise ConfigError(f"a body of more than {MOST_BODY} bytes is not passed on.")
        parts.append(part)
    return b"".join(parts)


def failed(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """An error in OpenAI's form."""
    error = {"message": message, "type": "server_error", "param": None, "code": status}
    return JSONResponse({"error": error}, status_code=status, headers=headers)
