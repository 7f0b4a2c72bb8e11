"""/v1/files and /v1/batches."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response

from jengine.server.batches.batches import MOST_OPEN, Batches, new_batch
from jengine.server.batches.store import Store
from jengine.server.batches.types import Batch, CreateBatch, FileObject, Page
from jengine.server.errors import ApiError, ClientLeft
from jengine.server.http.body import BODY_TIMEOUT, read_body
from jengine.server.http.form import field_of, form_parts
from jengine.server.http.json_response import json_response
from jengine.server.serving.service import Service

_WINDOW = re.compile(r"([1-9]\d{0,3})h")
T = TypeVar("T", FileObject, Batch)


def batches_of(http: Request) -> Batches:
    """The server's batches. Raises ApiError 404 if they are off."""
    batches: Batches | None = http.app.state.batches
    if batches is None:
        raise ApiError(404, "Batches are off. Start the server with --batch-dir DIR to use them.")
    return batches


def found(store: Store, kind: type[T], object_id: str, param: str | None = None) -> T:
    """An object of the store. Raises ApiError 404."""
    one = store.get(kind, object_id)
    if one is None:
        what = "file" if kind is FileObject else "batch"
        raise ApiError(404, f"There is no {what} {object_id[:60]!r}.", param=param)
    return one


# --- files -------------------------------------------------------------------------------------


async def create_file(service: Service, http: Request) -> Response:
    """POST /v1/files: the body goes to the folder as it arrives."""
    store = batches_of(http).store
    most = service.settings.max_batch_dir_bytes
    if await asyncio.to_thread(lambda: store.size) > most:
        raise ApiError(
            503,
            f"The server keeps more than {most} bytes of files. Delete some, or start it with a "
            "larger --max-batch-dir-bytes.",
        )
    handle, name = tempfile.mkstemp(dir=store.folder, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            await write_body(http, file)
        kind = http.headers.get("content-type", "")
        return json_response(await asyncio.to_thread(stored, store, Path(name), kind))
    finally:
        Path(name).unlink(missing_ok=True)


async def write_body(http: Request, file: BinaryIO) -> None:
    """Write the body to a file. ApiError 408 if nothing arrives for a while."""
    chunks = http.stream()
    try:
        while True:
            async with asyncio.timeout(BODY_TIMEOUT):
                file.write(await anext(chunks))
    except StopAsyncIteration:
        return
    except ClientDisconnect as error:
        raise ClientLeft from error


def stored(store: Store, body: Path, content_type: str) -> FileObject:
    """Store the file of a multipart form, which is mapped from disk rather than read into
    memory."""
    if not body.stat().st_size:
        raise ApiError(400, "The body is empty; expected a form with purpose and file.")
    content = body.with_suffix(".content.part")
    try:
        with body.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as form:
            parts = {part.name: part for part in form_parts(form, content_type)}
            file, purpose = parts.get("file"), parts.get("purpose")
            if file is None or not file.is_file:
                raise ApiError(400, "file is missing: send the content as a file.", param="file")
            given = "" if purpose is None else field_of(form, purpose)
            if given != "batch":
                raise ApiError(400, f"purpose={given[:60]!r}: expected 'batch'.", param="purpose")
            with memoryview(form)[file.start : file.end] as piece:
                content.write_bytes(piece)
        return store.add(content, file.filename[:200], given)
    finally:
        content.unlink(missing_ok=True)


async def list_files(service: Service, http: Request) -> Response:
    """GET /v1/files."""
    files = await asyncio.to_thread(batches_of(http).store.all, FileObject, "file-")
    purpose = http.query_params.get("purpose")
    if http.query_params.get("order") == "asc":
        files.reverse()
    files = [one for one in files if purpose in (None, one.purpose)]
    return json_response(page(files, http, 10_000))


async def get_file(service: Service, http: Request) -> Response:
    """GET /v1/files/{file_id}."""
    return json_response(found(batches_of(http).store, FileObject, http.path_params["file_id"]))


async def file_content(service: Service, http: Request) -> Response:
    """GET /v1/files/{file_id}/content."""
    store = batches_of(http).store
    one = found(store, FileObject, http.path_params["file_id"])
    return FileResponse(store.content(one.id), media_type="application/jsonl")


async def delete_file(service: Service, http: Request) -> Response:
    """DELETE /v1/files/{file_id}."""
    store = batches_of(http).store
    one = found(store, FileObject, http.path_params["file_id"])
    for batch in await asyncio.to_thread(store.all, Batch, "batch_"):
        if batch.input_file_id == one.id and not batch.is_over:
            raise ApiError(409, f"{batch.id} needs this file. Cancel the batch before.")
    store.remove(one.id)
    return json_response({"id": one.id, "object": "file", "deleted": True})


# --- batches -----------------------------------------------------------------------------------


async def create_batch(service: Service, http: Request) -> Response:
    """POST /v1/batches: the batch begins at once."""
    batches = batches_of(http)
    service.check_serving()
    request = await read_body(http, CreateBatch, strict=service.settings.strict_requests)
    endpoint, window = request.endpoint or "", request.completion_window or "24h"
    if endpoint not in batches.endpoints:
        known = ", ".join(one[1:] for one in batches.endpoints)
        raise ApiError(400, f"endpoint={endpoint[1:61]!r}: expected / and one of {known}.",
                       param="endpoint")  # fmt: skip
    hours = _WINDOW.fullmatch(window)
    if hours is None:
        raise ApiError(400, f"completion_window={window[:20]!r}: expected hours, as in '24h'.",
                       param="completion_window")  # fmt: skip
    file = found(batches.store, FileObject, request.input_file_id or "", "input_file_id")
    unfinished = [one for one in await all_batches(batches) if not one.is_over]
    if len(unfinished) >= MOST_OPEN:
        raise ApiError(503, f"{MOST_OPEN} batches are unfinished, the most that are allowed.")
    content = batches.store.content(file.id)
    batch = await asyncio.to_thread(new_batch, endpoint, content, file.id, window, int(hours[1]))
    batch.metadata = request.metadata
    batches.store.put(batch)
    batches.start(batch)
    return json_response(batch)


async def list_batches(service: Service, http: Request) -> Response:
    """GET /v1/batches."""
    return json_response(page(await all_batches(batches_of(http)), http, 20))


async def get_batch(service: Service, http: Request) -> Response:
    """GET /v1/batches/{batch_id}."""
    return json_response(known_batch(http))


async def cancel_batch(service: Service, http: Request) -> Response:
    """POST /v1/batches/{batch_id}/cancel: results so far are kept."""
    batch = known_batch(http)
    if batch.is_over:
        raise ApiError(409, f"The batch is {batch.status} and cannot be cancelled.")
    batches_of(http).store.cancellation(batch.id).touch()
    return json_response(known_batch(http))


def known_batch(http: Request) -> Batch:
    """The batch of the path, with a requested cancellation as its status."""
    store = batches_of(http).store
    batch = found(store, Batch, http.path_params["batch_id"])
    asked = store.cancellation(batch.id)
    if not batch.is_over and asked.exists():
        batch.status, batch.cancelling_at = "cancelling", int(asked.stat().st_mtime)
    return batch


async def all_batches(batches: Batches) -> list[Batch]:
    return await asyncio.to_thread(batches.store.all, Batch, "batch_")


def page(objects: list[Any], http: Request, usual: int) -> Page:
    """Return a page of the list: objects after the one that the query names, up to its limit."""
    asked = http.query_params.get("limit", str(usual))
    if not asked.isdecimal() or not 1 <= int(asked) <= 10_000:
        raise ApiError(400, f"limit={asked[:20]!r}: expected 1 to 10000.", param="limit")
    ids = [one.id for one in objects]
    after = http.query_params.get("after")
    start = ids.index(after) + 1 if after in ids else 0
    chosen = objects[start : start + int(asked)]
    return Page(
        chosen,
        has_more=start + len(chosen) < len(objects),
        first_id=chosen[0].id if chosen else None,
        last_id=chosen[-1].id if chosen else None,
    )
