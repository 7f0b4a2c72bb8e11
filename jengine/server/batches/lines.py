"""Lines of OpenAI's batch files: a request in, a response or an error out.

Must not know files, or who answers.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
from starlette.responses import Response

from jengine.server.errors import ApiError, ErrorBody

# (path, body, request id) -> response
Ask = Callable[[str, bytes, str], Awaitable[Response]]


class BatchLine(NamedTuple):
    """A line of a batch file, and its number from 1."""

    number: int
    text: bytes


class BatchRequest(msgspec.Struct):
    """A line of a batch's input file."""

    custom_id: str
    url: str  # the path of a route
    body: msgspec.Raw
    method: str = "POST"


class BatchResponse(msgspec.Struct):
    """The response to a line's request."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class BatchError(msgspec.Struct):
    """Why a line has no answer."""

    code: int
    message: str
    type: str
    param: str | None
    line: int  # of the input file


class BatchResult(msgspec.Struct):
    """A line of a batch's output file. A failed request has both response and error, a malformed
    line only the error."""

    id: str
    custom_id: str | None
    response: BatchResponse | None
    error: BatchError | None


class _Named(msgspec.Struct):
    custom_id: str


class _Streamed(msgspec.Struct):
    stream: Any = None


async def answered(line: BatchLine, ask: Ask) -> BatchResult:
    """Answer one line. Malformed lines become errors."""
    result_id = f"batch_req_{uuid.uuid4().hex}"
    try:
        request = read_line(line)
    except ApiError as error:
        told = error_of(line, error.body)
        return BatchResult(result_id, custom_id_of(line), None, told)
    request_id = f"batch-{uuid.uuid4().hex}"
    response = await ask(request.url, bytes(request.body), request_id)
    body, status = bytes(response.body), response.status_code
    failed = msgspec.json.decode(body, type=ErrorBody) if status >= 400 else None
    return BatchResult(
        result_id,
        request.custom_id,
        BatchResponse(status, request_id, msgspec.Raw(body)),
        None if failed is None else error_of(line, failed),
    )


def read_line(line: BatchLine) -> BatchRequest:
    """Decode a line. Raises ApiError 400."""
    try:
        request = msgspec.json.decode(line.text, type=BatchRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(
            400,
            f"Line {line.number} is no request: {error}. Expected a JSON object with custom_id, "
            "method, url and body.",
        ) from error
    if request.method != "POST":
        raise ApiError(400, f"method={request.method!r}: expected 'POST'.", param="method")
    if streamed(request.body):
        raise ApiError(
            400, "stream: the answers of a batch are whole. Leave it out.", param="stream"
        )
    return request


def streamed(body: msgspec.Raw) -> bool:
    """Whether a body asks for a stream. Malformed bodies are left to the route to refuse."""
    try:
        return bool(msgspec.json.decode(body, type=_Streamed).stream)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def custom_id_of(line: BatchLine) -> str | None:
    """The custom_id of a malformed line, if it has one."""
    try:
        return msgspec.json.decode(line.text, type=_Named).custom_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def error_of(line: BatchLine, body: ErrorBody) -> BatchError:
    told = body.error
    return BatchError(told.code, told.message, told.type, told.param, line.number)
