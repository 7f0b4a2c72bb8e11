"""Client errors: the server is unreachable or failed mid-response."""

from __future__ import annotations

import json

from jengine.errors import CapacityError, JengineError, RequestError

# Characters of a server's message that are kept.
LONGEST_MESSAGE = 1000
NOT_NOW = (408, 425, 429, 503, 529)


class ServerFailed(JengineError, ConnectionError):
    """The server is unreachable, closed the connection, or answered with a server error."""


class ServerBusy(CapacityError):
    """The server is temporarily at capacity."""


def error_of(status: int, body: bytes, where: str) -> JengineError:
    """Map an HTTP status to an exception with the server's message."""
    said = message_of(body)
    if status in (401, 403):
        return RequestError(
            f"{where} refuses this API key (status {status}: {said}). Give the server's key with "
            "--api-key or in OPENAI_API_KEY."
        )
    if status in NOT_NOW:
        return ServerBusy(f"{where} takes no request at the moment (status {status}): {said}")
    if 400 <= status < 500:
        return RequestError(f"{said} (status {status} from {where})")
    return ServerFailed(f"{where} answered with status {status}: {said}")


def message_of(body: bytes) -> str:
    """Extract an error body's message, in any of the usual shapes."""
    try:
        found = json.loads(body)
    except ValueError:
        return body.decode(errors="replace").strip()[:LONGEST_MESSAGE] or "no message"
    return message_in(found)


def message_in(found: object) -> str:
    """Message in a decoded error: {"error": {"message": ...}} or {"detail": ...}."""
    while isinstance(found, dict):
        found = next((found[key] for key in ("error", "message", "detail") if key in found), "")
    text = found if isinstance(found, str) else json.dumps(found)
    return text[:LONGEST_MESSAGE] or "no message"
