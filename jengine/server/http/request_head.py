"""Request id and deadline from a request's headers.

In: untrusted headers. Out: an id that is safe in logs, a deadline on the event loop's clock. Must
not know bodies.
"""

from __future__ import annotations

import asyncio
import math
import re
import uuid

from starlette.requests import Request

from jengine.server.errors import ApiError

_ID = re.compile(r"[A-Za-z0-9._:/@+=#~-]{1,128}")


def request_id_of(http: Request, given: str | None) -> str:
    """Request id: from X-Request-Id, else the body, else new."""
    for name, value in (("X-Request-Id", http.headers.get("x-request-id")), ("request_id", given)):
        if value is None:
            continue
        if not _ID.fullmatch(value):
            raise ApiError(
                400,
                f"{name}: expected 1 to 128 of the characters A-Z, a-z, 0-9 and ._:/@+=#~-",
                param=name,
            )
        return value
    return uuid.uuid4().hex


def deadline_of(http: Request, usual: float | None) -> float | None:
    """Deadline on the event loop's clock; the header may only lower the server's timeout."""
    seconds = _seconds(http.headers.get("x-request-timeout"))
    if usual is not None:
        seconds = usual if seconds is None else min(seconds, usual)
    return None if seconds is None else asyncio.get_running_loop().time() + seconds


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise ApiError(
            400,
            f"X-Request-Timeout is {text[:40]!r}; expected a number of seconds above 0.",
            param="X-Request-Timeout",
        )
    return seconds
