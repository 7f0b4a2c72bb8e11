"""multipart/form-data: a body of fields and one file, as HTML forms and clients of OpenAI send it.

In: the bytes of a body and its content type. Out: fields by name, and the content of the file.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from jengine.server.errors import ApiError

MOST_PARTS = 64
MOST_HEADER, MOST_FIELD = 4096, 64 * 1024
_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_NAME = re.compile(rb';\s*name="((?:[^"\\\r\n]|\\.)*)"', re.IGNORECASE)
_FILENAME = re.compile(rb";\s*filename\*?=", re.IGNORECASE)


class Form(NamedTuple):
    """A parsed multipart form. A field given more than once has several values."""

    fields: dict[str, list[str]]
    files: dict[str, bytes]


def read_form(body: bytes, content_type: str) -> Form:
    """Parse a multipart body.

    Raises:
        ApiError: 400 or 415, naming what is malformed.
    """
    kind, found = content_type.split(";")[0].strip().lower(), _BOUNDARY.search(content_type)
    if kind != "multipart/form-data" or found is None:
        raise ApiError(
            415,
            f"The content type is {content_type[:100]!r}; expected multipart/form-data with a "
            "boundary, as `curl -F file=@speech.wav` sends it.",
        )
    line = b"--" + (found[1] or found[2]).encode("latin-1", "replace")
    form, parts = Form({}, {}), (b"\r\n" + body).split(b"\r\n" + line)
    if len(parts) < 2 or parts[-1][:2] != b"--":
        raise ApiError(400, "The form does not end with its boundary: it was cut off, or is none.")
    if len(parts) > MOST_PARTS:
        raise ApiError(400, f"The form has {len(parts) - 2} parts; expected at most {MOST_PARTS}.")
    for part in parts[1:-1]:
        _take(part, form)
    return form


def _take(part: bytes, form: Form) -> None:
    end = part.find(b"\r\n\r\n", 0, MOST_HEADER)
    if part[:2] != b"\r\n" or end < 0:
        raise ApiError(400, "A part of the form has no head with a Content-Disposition.")
    headers = part[:end].split(b"\r\n")
    told = [one for one in headers if one.lower().startswith(b"content-disposition:")]
    found = _NAME.search(told[0]) if told else None
    if found is None:
        raise ApiError(400, "A part of the form has no name in its Content-Disposition.")
    name, content = found[1].decode("utf-8", "replace"), part[end + 4 :]
    if _FILENAME.search(told[0]):
        if name in form.files:
            raise ApiError(400, f"The form has several files {name!r}; expected one.", param=name)
        form.files[name] = content
        return
    if len(content) > MOST_FIELD:
        raise ApiError(
            400, f"{name}: {len(content)} bytes; expected at most {MOST_FIELD}.", param=name
        )
    try:
        form.fields.setdefault(name, []).append(content.decode())
    except UnicodeDecodeError:
        raise ApiError(400, f"{name}: expected UTF-8 text.", param=name) from None
