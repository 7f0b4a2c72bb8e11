"""Parser of multipart/form-data.

In: a body and its content type. Out: fields and files by name.
"""

from __future__ import annotations

import re
from itertools import pairwise
from mmap import mmap
from typing import NamedTuple

from jengine.server.errors import ApiError

MOST_PARTS = 64
MOST_HEADER, MOST_FIELD = 4096, 64 * 1024
_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_NAME = re.compile(rb';\s*name="((?:[^"\\\r\n]|\\.)*)"', re.IGNORECASE)
_FILENAME = re.compile(rb';\s*filename\*?="?((?:[^"\\\r\n;]|\\.)*)', re.IGNORECASE)


class Form(NamedTuple):
    """A parsed multipart form. A field given more than once has several values."""

    fields: dict[str, list[str]]
    files: dict[str, bytes]


class FormPart(NamedTuple):
    """A part of a multipart form, and where its content is in the body."""

    name: str
    is_file: bool
    start: int
    end: int
    filename: str = ""


def read_form(body: bytes, content_type: str) -> Form:
    """Parse a multipart body.

    Raises:
        ApiError: 400 or 415, naming what is malformed.
    """
    form = Form({}, {})
    for part in form_parts(body, content_type):
        if part.is_file:
            form.files[part.name] = body[part.start : part.end]
        else:
            form.fields.setdefault(part.name, []).append(field_of(body, part))
    return form


def form_parts(body: bytes | mmap, content_type: str) -> list[FormPart]:
    """The parts of a multipart body, which may be a file. Raises as `read_form`."""
    kind, found = content_type.split(";")[0].strip().lower(), _BOUNDARY.search(content_type)
    if kind != "multipart/form-data" or found is None:
        raise ApiError(
            415,
            f"The content type is {content_type[:100]!r}; expected multipart/form-data with a "
            "boundary, as `curl -F file=@speech.wav` sends it.",
        )
    line = b"--" + (found[1] or found[2]).encode("latin-1", "replace")
    # Start and end of each boundary line.
    marks = [(0, len(line))] if body[: len(line)] == line else []
    at = body.find(b"\r\n" + line)
    while at >= 0 and len(marks) <= MOST_PARTS:
        marks.append((at, at + 2 + len(line)))
        at = body.find(b"\r\n" + line, marks[-1][1])
    if len(marks) > MOST_PARTS:
        raise ApiError(400, f"The form has more parts than the {MOST_PARTS} that are allowed.")
    if not marks or body[marks[-1][1] : marks[-1][1] + 2] != b"--":
        raise ApiError(400, "The form does not end with its boundary: it was cut off, or is none.")
    parts = [part_at(body, start, end) for (_, start), (end, _) in pairwise(marks)]
    files = [part.name for part in parts if part.is_file]
    for name in files:
        if files.count(name) > 1:
            raise ApiError(400, f"The form has several files {name!r}; expected one.", param=name)
    return parts


def part_at(body: bytes | mmap, start: int, end: int) -> FormPart:
    """Parse the part of a form between two boundaries."""
    head_end = body.find(b"\r\n\r\n", start, min(end, start + MOST_HEADER))
    if body[start : start + 2] != b"\r\n" or head_end < 0:
        raise ApiError(400, "A part of the form has no head with a Content-Disposition.")
    headers = body[start:head_end].split(b"\r\n")
    told = [one for one in headers if one.lower().startswith(b"content-disposition:")]
    found = _NAME.search(told[0]) if told else None
    if found is None:
        raise ApiError(400, "A part of the form has no name in its Content-Disposition.")
    name, file = found[1].decode("utf-8", "replace"), _FILENAME.search(told[0])
    filename = "" if file is None else file[1].decode("utf-8", "replace")
    return FormPart(name, file is not None, min(head_end + 4, end), end, filename)


def field_of(body: bytes | mmap, part: FormPart) -> str:
    """Decode the text of a form field."""
    size = part.end - part.start
    if size > MOST_FIELD:
        raise ApiError(
            400, f"{part.name}: {size} bytes; expected at most {MOST_FIELD}.", param=part.name
        )
    try:
        return body[part.start : part.end].decode()
    except UnicodeDecodeError:
        raise ApiError(400, f"{part.name}: expected UTF-8 text.", param=part.name) from None
