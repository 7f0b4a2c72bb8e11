"""Structs as JSON responses."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response


def json_response(body: Any, status: int = 200) -> Response:
    """A response with a struct or plain data as its body."""
    return Response(msgspec.json.encode(body), status, media_type="application/json")
