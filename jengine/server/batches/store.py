"""Persistent store of files and batches in a directory that the server's processes share.

In: contents and objects. Out: the same by id. An object is a JSON file, replaced atomically. Ids
are validated before they become file names. Must not know HTTP, or how batches run.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
import uuid
from pathlib import Path
from typing import TypeVar

import msgspec

from jengine.errors import ConfigError
from jengine.server.batches.types import Batch, FileObject

_ID = re.compile(r"(?:file-|batch_)[0-9a-f]{32}")
T = TypeVar("T", FileObject, Batch)


class Store:
    """The folder of --batch-dir."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--batch-dir {folder}: {error.strerror}.") from error

    def content(self, file_id: str) -> Path:
        assert _ID.fullmatch(file_id), "checked"
        return self.folder / file_id

    def get(self, kind: type[T], object_id: str) -> T | None:
        """Return None for an unknown, malformed or unreadable id."""
        if not _ID.fullmatch(object_id):
            return None
        try:
            text = (self.folder / f"{object_id}.json").read_bytes()
            return msgspec.json.decode(text, type=kind)
        except (FileNotFoundError, msgspec.ValidationError):
            return None

    def put(self, one: FileObject | Batch) -> None:
        """Write or replace an object, atomically."""
        handle, name = tempfile.mkstemp(dir=self.folder, suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(one))
        os.replace(name, self.folder / f"{one.id}.json")

    def all(self, kind: type[T], prefix: str) -> list[T]:
        """All objects whose ids begin with `prefix`, the newest first."""
        names = [one.stem for one in self.folder.glob(f"{prefix}*.json")]
        found = [one for name in names if (one := self.get(kind, name)) is not None]
        return sorted(found, key=lambda one: (one.created_at, one.id), reverse=True)

    def add(self, part: Path, filename: str, purpose: str) -> FileObject:
        """Make a file object of `part`, a finished upload in this folder, which is renamed."""
        one = FileObject(new_id("file-"), part.stat().st_size, now(), filename, purpose)
        os.replace(part, self.content(one.id))
        self.put(one)
        return one

    def remove(self, file_id: str) -> None:
        (self.folder / f"{file_id}.json").unlink(missing_ok=True)
        self.content(file_id).unlink(missing_ok=True)

    def cancellation(self, batch_id: str) -> Path:
        """Path of a marker file: its existence asks the process that runs the batch to cancel
        it."""
        return self.folder / f"{batch_id}.cancel"

    @property
    def size(self) -> int:
        """Bytes of everything in the folder."""
        return sum(one.stat().st_size for one in os.scandir(self.folder))


def new_id(prefix: str) -> str:
    return f"{prefix}{uuid.uuid4().hex}"


def now() -> int:
    return int(time.time())
