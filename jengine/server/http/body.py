"""Decodes JSON bodies to structs.

In: a request and a msgspec struct whose fields are all nullable (null means unset). Out: the
struct, and the names of undeclared fields. Errors name the field by its path.
"""

from __future__ import annotations

import asyncio
import codecs
import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from jengine.server.errors import ApiError, ClientLeft
from jengine.server.http.text_limits import TextLimits
from jengine.wire.json_limits import complaint_about

T = TypeVar("T", bound=msgspec.Struct)
_WHERE = re.compile(r" - at `\$\.?(.*)`$")
_HARMLESS = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MOST_NAMED = 16
# Seconds for a body to arrive after its head.
BODY_TIMEOUT = 60.0
# Larger bodies are decoded in a thread, so as not to block the event loop.
DECODED_HERE = 256 * 1024


class Ignored(NamedTuple):
    """Names of request fields that the body's struct does not declare."""

    names: tuple[str, ...] = ()

    @property
    def header(self) -> str:
        """The names as a header value; names that are not header-safe are left out."""
        return ", ".join([name for name in self.names if _HARMLESS.fullmatch(name)][:MOST_NAMED])


async def read_body(request: Request, kind: type[T], *, strict: bool) -> T:
    """Decode the JSON body to a struct.

    Unknown fields are noted in the request's state; with `strict` they raise ApiError 400.
    """
    media = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media != "application/json":
        raise ApiError(
            415,
            f"The content type is {media[:100]!r}; expected application/json. Send the header "
            "'Content-Type: application/json'.",
        )
    body = await whole_body(request)
    limits: TextLimits | None = getattr(request.state, "text_limits", None)
    if len(body) <= DECODED_HERE:
        value, ignored = checked(body, kind, limits)
    else:
        value, ignored = await asyncio.to_thread(checked, body, kind, limits)
    if strict and ignored.names:
        raise ApiError(
            400,
            f"Unknown fields: {', '.join(ignored.names[:MOST_NAMED])}. Leave them out, or start "
            "the server without --strict-requests.",
            param=ignored.names[0],
        )
    request.state.ignored_fields = ignored
    request.state.fields = fields_of(kind)
    return value


async def whole_body(request: Request) -> bytes:
    """Read the whole body; ApiError 408 if it does not arrive in time."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            return await request.body()
    except ClientDisconnect as error:
        raise ClientLeft from error
    except TimeoutError as error:
        raise ApiError(
            408,
            f"The body did not arrive within {BODY_TIMEOUT:g} seconds. Send it faster, or less at "
            "once.",
            headers={"Connection": "close"},
        ) from error


def checked(body: bytes, kind: type[T], limits: TextLimits | None) -> tuple[T, Ignored]:
    """As `decoded`. Raises ApiError 400 if the body exceeds the limits."""
    complaint = complaint_about(body)
    if complaint is not None:
        raise ApiError(400, f"The body has {complaint}. Send less at once.")
    value, ignored = decoded(body, kind)
    if limits is not None:
        limits.check(value, len(body))
    return value, ignored


def decoded(body: bytes, kind: type[T]) -> tuple[T, Ignored]:
    """Decode JSON to a struct. Also returns the names of undeclared fields.

    As in vLLM, numbers and booleans may be written as text ("16"), and integers as 16.0: clients
    whose language has one kind of number, or templates that quote, send them so.
    """
    body = body.removeprefix(codecs.BOM_UTF8)  # as editors and shells of Windows write
    try:
        value = msgspec.json.decode(body, type=kind, strict=False)
        given = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as error:
        raise wrong_type(str(error)) from error
    except msgspec.DecodeError as error:
        raise ApiError(400, f"The body is not valid JSON: {error}.") from error
    except UnicodeDecodeError as error:
        raise ApiError(400, "The body is not UTF-8 text.") from error
    except RecursionError as error:
        raise ApiError(400, "The body is nested too deeply.") from error
    return value, Ignored(tuple(sorted(given.keys() - fields_of(kind))))


def wrong_type(message: str) -> ApiError:
    """The ApiError of a value of the wrong type, with the path of its field."""
    found = _WHERE.search(message)
    text = message[: found.start()] if found else message
    text = text.replace("`", "").replace(" | null", "")
    where = found[1] if found else ""
    if not where:
        return ApiError(400, f"The body: {text[:1].lower()}{text[1:]}.")
    return ApiError(400, f"{where}: {text[:1].lower()}{text[1:]}.", param=where)


def ignore(request: Request, names: Iterable[str]) -> None:
    """Note further field names that had no effect."""
    ignored: Ignored = getattr(request.state, "ignored_fields", Ignored())
    request.state.ignored_fields = Ignored((*ignored.names, *names))


@cache
def fields_of(kind: type[msgspec.Struct]) -> frozenset[str]:
    """JSON names of a struct's fields."""
    return frozenset(field.encode_name for field in msgspec.structs.fields(kind))
