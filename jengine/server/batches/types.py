"""JSON objects of /v1/files and /v1/batches."""

from __future__ import annotations

from typing import Literal

import msgspec

Status = Literal["in_progress", "cancelling", "completed", "cancelled", "expired", "failed"]


class FileObject(msgspec.Struct):
    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    object: str = "file"
    status: str = "processed"


class Counts(msgspec.Struct):
    total: int
    completed: int = 0
    failed: int = 0


class Problem(msgspec.Struct):
    """Why a whole batch has failed."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Problems(msgspec.Struct):
    data: list[Problem]
    object: str = "list"


class Batch(msgspec.Struct):
    """A batch object, as sent to clients and as stored."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    request_counts: Counts
    metadata: dict[str, str] | None = None
    status: Status = "in_progress"
    in_progress_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    completed_at: int | None = None
    expired_at: int | None = None
    failed_at: int | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: Problems | None = None
    object: str = "batch"

    @property
    def is_over(self) -> bool:
        return self.status not in ("in_progress", "cancelling")


class CreateBatch(msgspec.Struct):
    """Body of POST /v1/batches."""

    input_file_id: str | None = None
    endpoint: str | None = None
    completion_window: str | None = None
    metadata: dict[str, str] | None = None


class Page(msgspec.Struct):
    """Some objects of a list, the newest first."""

    data: list[FileObject] | list[Batch]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: str = "list"
