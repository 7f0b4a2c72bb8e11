"""KV connector that stores blocks as files of a directory: a disk tier, or storage shared by
engines.

Files are named by namespace and content key, appear atomically and carry a checksum, so they
survive restarts and any number of engines may share a directory. Damaged files are removed. With a
limit, the least recently read files are evicted. In a mesh of several processes each writes its
shard of a block under its own namespace, and a block is stored once all shards are.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jengine.config import WHOLE_BLOCKS
from jengine.errors import ConfigError
from jengine.request import WireRequest

MAGIC = b"jengine KV 2\n"
CHECKSUM_BYTES = 4
HEADER_BYTES = len(MAGIC) + CHECKSUM_BYTES
SUFFIX = ".kv"
# Share of a full directory that is evicted at a time.
FREED = 0.1


def folder_of(root: str | Path, namespace: str) -> Path:
    """Directory of a namespace's files."""
    return Path(root) / namespace


def file_of(folder: str | Path, key: bytes) -> str:
    """Path of a block's file. A string: a prompt's lookup makes one per block."""
    name = key.hex()
    return f"{folder}/{name[:2]}/{name}{SUFFIX}"


def header_of(key: bytes, data: bytes | memoryview) -> bytes:
    """File header: magic and a CRC of content key and block. It detects damage, not forgery: anyone
    with write access can compute it."""
    return MAGIC + zlib.crc32(data, zlib.crc32(key)).to_bytes(CHECKSUM_BYTES, "little")


class FolderIndex:
    """The scheduler's half: looks files up by content key."""

    def __init__(
        self, root: str | Path, namespace: str, pieces: Sequence[str] = WHOLE_BLOCKS
    ) -> None:
        """`pieces`: name of each process's shard of a block."""
        folders = [folder_of(root, namespace + piece) for piece in dict.fromkeys(pieces)]
        self._folders = [str(folder) for folder in folders]
        missing = [folder for folder in folders if not folder.is_dir()]
        if missing and len(self._folders) > 1:
            raise ConfigError(
                f"{missing[0]}, which another process of this engine has made, is not seen in this "
                "one. Give a folder that the hosts of all processes share, and each the same files "
                "of the model."
            )
        self._valid_since = 0.0  # Unix time; older files are ignored

    def source(self, wire: WireRequest) -> str | None:
        """Return "": every request may use the folder."""
        return ""

    def holds(self, key: bytes, source: str) -> bool:
        """Whether every shard has a file written since the last reset."""
        try:
            return all(
                os.stat(file_of(folder, key)).st_mtime >= self._valid_since
                for folder in self._folders
            )
        except OSError:
            return False

    def lost(self, key: bytes, source: str) -> None:
        """Do nothing: a damaged file has been removed, and `holds` looks again."""

    def forget(self, key: bytes) -> None:
        """Remove the block's files."""
        for folder in self._folders:
            with contextlib.suppress(OSError):  # already gone
                os.unlink(file_of(folder, key))

    def finished(self, wire: WireRequest, num_tokens: int) -> Mapping[str, Any]:
        """Return nothing: consumers find files by content key."""
        return {}

    def reset(self) -> None:
        """Ignore files written before now."""
        self._valid_since = time.time()


class FolderStore:
    def __init__(self, root: str | Path, namespace: str, most_bytes: int | None = None) -> None:
        self._folder = folder_of(root, namespace)
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()  # least recently used first
        self._total = 0
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path, size in found_files(self._folder):
            self._sizes[path] = size
            self._total += size

    def read(self, key: bytes, source: str) -> bytes | memoryview | None:
        """Map the block's file into memory, or return None after removing a damaged one. Files are
        never rewritten, and a removed file stays mapped."""
        path = file_of(self._folder, key)
        try:
            number = os.open(path, os.O_RDONLY)
        except OSError:  # no such block
            return None
        try:
            found = mapped(number)
            data = found[HEADER_BYTES:]
            if found[:HEADER_BYTES] != header_of(key, data):
                self._remove(path)
                return None
            with contextlib.suppress(OSError):  # owned by another user
                os.utime(number, ns=(time.time_ns(), os.fstat(number).st_mtime_ns))
        finally:
            os.close(number)
        with self._lock:
            if path in self._sizes:
                self._sizes.move_to_end(path)
        return data

    def write(self, key: bytes, data: bytes) -> None:
        """Write the file atomically."""
        path, size = file_of(self._folder, key), HEADER_BYTES + len(data)
        if self._most_bytes is not None:
            if size > self._most_bytes:
                return
            self._make_room(size)
        parent = os.path.dirname(path)
        os.makedirs(parent, exist_ok=True, mode=0o700)
        number, temporary = tempfile.mkstemp(dir=parent)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(header_of(key, data))
                file.write(data)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        with self._lock:
            self._total += size - self._sizes.pop(path, 0)
            self._sizes[path] = size

    def close(self) -> None:
        """Do nothing: no resources are held."""

    @property
    def total(self) -> int:
        """Bytes of all files that this engine has counted."""
        return self._total

    def _make_room(self, size: int) -> None:
        assert self._most_bytes is not None
        if self._total + size <= self._most_bytes:
            return
        least = min(self._most_bytes - size, int(self._most_bytes * (1 - FREED)))
        while self._total > least and self._sizes:
            self._remove(next(iter(self._sizes)))

    def _remove(self, path: str) -> None:
        with contextlib.suppress(OSError):  # another engine has removed it
            os.unlink(path)
        with self._lock:
            self._total -= self._sizes.pop(path, 0)


def mapped(number: int) -> memoryview:
    """An open file's bytes, mapped read-only; empty for an empty file, which cannot be mapped."""
    if not os.fstat(number).st_size:
        return memoryview(b"")
    return memoryview(mmap.mmap(number, 0, access=mmap.ACCESS_READ))


def found_files(folder: Path) -> Iterator[tuple[str, int]]:
    """Files of a directory with their sizes, least recently used first."""
    found = []
    for path in folder.glob(f"*/*{SUFFIX}"):
        with contextlib.suppress(OSError):
            status = path.stat()
            found.append((status.st_atime_ns, path, status.st_size))
    for _, path, size in sorted(found):
        yield str(path), size
