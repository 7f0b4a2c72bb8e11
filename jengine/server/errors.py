"""Maps exceptions to HTTP errors: one table of statuses, one conversion for any exception.

In: exceptions of any room. Out: `{"error": {message, type, param, code}}`. Messages are sanitised:
no memory addresses, paths or tracebacks. Must not know endpoints.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from jengine.errors import (
    RETRY_AFTER,
    CapacityError,
    ContextOverflow,
    EngineDead,
    RequestError,
    UnsupportedFeature,
)

logger = logging.getLogger(__name__)

# Status -> the `type` in the body.
TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "TimeoutError",
    409: "ConflictError",
    413: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError",
    431: "RequestTooLargeError",
    499: "ClientDisconnectedError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}
LONGEST_MESSAGE = 1024

_ADDRESS = re.compile(r"(?: at )?\b0x[0-9a-fA-F]{4,}\b")
_TRACEBACK = re.compile(r'\n?\s*File "[^"\n]*", line \d+(?:, in \S+)?(?:\n\s+[^\n]*)?')
_TRACEBACK_HEAD = re.compile(r"Traceback \(most recent call last\):")
# File paths, but not routes, which errors may advise.
_PATH = re.compile(r"(?<![\w/.:<])/(?!(?:v1|v2|health)/)(?:[\w.+@%-]+/)+[\w.+@%-]+")
# Request field at the start of a validation error's message.
_SUBJECT = re.compile(
    r"^(?:SamplingParams\()?`?(\w+)`?(?:\[\d+\])?"
    r"(?==|\[| key|: expected| has | may | must | is set )"
)


class ErrorInfo(msgspec.Struct):
    """The `error` object of an error response."""

    message: str
    type: str
    param: str | None
    code: int


class ErrorBody(msgspec.Struct):
    """Body of every error response, and of error events in a stream."""

    error: ErrorInfo


class ApiError(Exception):
    """An error with its HTTP status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        kind: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.kind = kind or TYPES[status]
        self.headers = dict(headers or {})
        if status == 503:
            self.headers.setdefault("Retry-After", str(RETRY_AFTER))

    def renamed(self, names: Mapping[str, str]) -> ApiError:
        """Return a copy whose field name is translated by `names`."""
        name = names.get(self.param or "", self.param)
        return ApiError(self.status, self.message, param=name, kind=self.kind, headers=self.headers)

    @property
    def body(self) -> ErrorBody:
        """The error body, sanitised for clients."""
        text = sanitised(self.message)
        return ErrorBody(ErrorInfo(text, self.kind, self.param, self.status))

    @property
    def response(self) -> Response:
        return Response(
            msgspec.json.encode(self.body),
            self.status,
            headers=self.headers,
            media_type="application/json",
        )


class ClientLeft(Exception):
    """The client disconnected before it was answered."""


def api_error(error: BaseException, fields: frozenset[str] = frozenset()) -> ApiError:
    """Map any exception to an ApiError with an HTTP status.

    Args:
        fields: names of the request's fields; an error message that begins with one gets it as
            `param`.
    """
    match error:
        case ApiError():
            return error
        case ClientLeft():
            return ApiError(499, "The client closed the connection.")
        case EngineDead():
            return ApiError(503, _dead_text(error), kind="InternalServerError")
        case ContextOverflow():
            return ApiError(400, str(error), param="input_tokens")
        case RequestError():
            return ApiError(400, str(error), param=_subject(str(error), fields))
        case UnsupportedFeature():
            return ApiError(501, str(error), param=_subject(str(error), fields))
        case CapacityError():
            return ApiError(503, str(error))
        case asyncio.TimeoutError():
            return ApiError(408, "The request took longer than its timeout and was aborted.")
        case HTTPException():
            return _of_starlette(error)
    logger.error("A request failed", exc_info=error)
    return ApiError(500, f"Internal server error ({type(error).__name__}); the log has the cause.")


def _dead_text(error: EngineDead) -> str:
    logger.error("The engine has stopped: %s", error)
    return "The engine has stopped and this server is about to exit. Send the request elsewhere."


def _of_starlette(error: HTTPException) -> ApiError:
    status = error.status_code if error.status_code in TYPES else 400
    texts = {404: "There is no such route.", 405: "This route does not take this method."}
    return ApiError(status, texts.get(status, str(error.detail)), headers=error.headers)


def _subject(message: str, fields: frozenset[str]) -> str | None:
    found = _SUBJECT.match(message)
    return found[1] if found and found[1] in fields else None


def sanitised(message: str) -> str:
    """A message without object addresses, absolute paths and tracebacks, of bounded length."""
    message = message[: 4 * LONGEST_MESSAGE]
    message = _TRACEBACK.sub("", message)
    message = _TRACEBACK_HEAD.sub("", message)
    message = _ADDRESS.sub("", message)
    message = _PATH.sub("<path>", message).strip()
    if len(message) > LONGEST_MESSAGE:
        message = message[: LONGEST_MESSAGE - 3] + "..."
    # A lone surrogate cannot be sent as UTF-8.
    return message.encode("utf-8", "replace").decode()
