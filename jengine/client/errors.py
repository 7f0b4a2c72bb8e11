"""Errors of a client: the server cannot be reached, or failed while it answered."""

from __future__ import annotations

import json

from jengine.errors import CapacityError, JengineError, RequestError

# Longer messages of a server are cut off.
LONGEST_MESSAGE = 1000
NOT_NOW = (408, 425, 429, 503, 529)


class ServerFailed(JengineError, ConnectionError):
    """The server cannot be reached, closed the connection, or answered with an error of its own."""


class ServerBusy(CapacityError):
    """The server takes no request at the moment."""


def error_of(status: int, body: bytes, where: str) -> JengineError:
    """The error that an HTTP status stands for: it says what the server said."""
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
    """The message in the body of an error, in whichever of the usual shapes it comes."""
    try:
        found = json.loads(body)
    except ValueError:
        return body.decode(errors="replace").strip()[:LONGEST_MESSAGE] or "no message"
    return message_in(found)


def message_in(found: object) -> str:
    """The message of a decoded error: OpenAI's {"error": {"message": ...}}, or {"detail": ...}."""
    while isinstance(found, dict):
        found = next((found[key] for key in ("error", "message", "detail") if key in found), "")
    text = found if isinstance(found, str) else json.dumps(found)
    return text[:LONGEST_MESSAGE] or "no message"
