"""Files of a batch: input read incrementally, results append-only.

In: files. Out: lines in bounded memory; which lines already have a result. Must not know requests'
bodies.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import msgspec
import numpy as np

from jengine.errors import ConfigError
from jengine.server.batches.lines import BatchLine, BatchResult, custom_id_of

# Bytes of input per read.
AT_ONCE = 256 * 1024
KEY_BYTES = 16
# Prefix of every result line.
BEGINNING = b'{"id":"batch_req_'


async def lines_of(file: BinaryIO, longest: int) -> AsyncIterator[BatchLine]:
    """Yield the lines that are not blank. Longer ones are cut after `longest` + 1 bytes, which
    marks them as too long."""
    number = 0
    while texts := await asyncio.to_thread(some_lines, file, longest):
        for text in texts:
            number += 1
            if text.strip():
                yield BatchLine(number, text)


def some_lines(file: BinaryIO, longest: int) -> list[bytes]:
    """The next lines, of about AT_ONCE bytes together; none at the end of the file."""
    lines: list[bytes] = []
    size = 0
    while size < AT_ONCE and (text := file.readline(longest + 1)):
        lines.append(text)
        size += len(text)
        while text and not text.endswith(b"\n"):  # the rest of a line that is too long
            text = file.readline(AT_ONCE)
    return lines


class _Done(msgspec.Struct):
    class Where(msgspec.Struct):
        line: int

    id: str
    custom_id: str | None
    error: Where | None = None


class ResultFile:
    """An append-only file of results, one per line, with a single writer."""

    def __init__(self, path: Path) -> None:
        """Open or create the file. An incomplete last line is dropped."""
        self.path = path
        self.keys = bytearray()  # keys of input lines that have a result here
        try:
            self._file = path.open("a+b")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read()
        except BlockingIOError as error:
            self._file.close()
            raise ConfigError(f"{path}: another process writes its results there.") from error
        except (OSError, ConfigError):
            self._file.close()
            raise

    def _read(self) -> None:
        end = self._file.seek(0)
        for number, text in enumerate(self._file, start=1):
            if not text.endswith(b"\n") and BEGINNING.startswith(text[: len(BEGINNING)]):
                self._file.truncate(end)
                return
            end += len(text)
            try:
                found = msgspec.json.decode(text, type=_Done)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"{self.path}, line {number} is no result of a batch: {error}. Name another "
                    "file, or remove that line."
                ) from error
            self.keys += key(found.custom_id, found.error.line if found.error else 0)

    def __len__(self) -> int:
        """Results in the file when it was opened."""
        return len(self.keys) // KEY_BYTES

    def put(self, result: BatchResult) -> None:
        """Append a result and flush, so that it survives a kill of this process."""
        self._file.write(msgspec.json.encode(result) + b"\n")
        self._file.flush()

    def __enter__(self) -> ResultFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._file.close()


class Finished:
    """Set of input lines that have a result, in KEY_BYTES of memory each."""

    def __init__(self, *files: ResultFile) -> None:
        keys = b"".join(file.keys for file in files)
        self._keys = np.sort(np.frombuffer(keys, dtype=f"S{KEY_BYTES}"))

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, line: BatchLine) -> bool:
        if not len(self):
            return False
        wanted = np.array([key(custom_id_of(line), line.number)], dtype=self._keys.dtype)
        (at,) = np.searchsorted(self._keys, wanted)
        return bool(at < len(self) and self._keys[at] == wanted[0])


def key(custom_id: str | None, line: int) -> bytes:
    """Hash of a line's custom_id, or of its number where it has none."""
    text = f"line {line}" if custom_id is None else f"id {custom_id}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()
