"""Decodes pictures from strangers in a process of its own, with limits of memory and time.

In: the bytes of a file. Out: its pixels, or a RequestError. A decoder that crashes, takes too much
memory or does not end costs that request alone: the next one gets a new process.
"""

from __future__ import annotations

import os
import select
import struct
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from jengine.errors import RequestError

SECONDS = 10.0
MODULE = "jengine.media.decode_pictures"
# Length of what follows, and rows and columns of a picture; 0 rows: what follows is an error.
HEAD = struct.Struct("<QII")
ROOT = Path(__file__).parent.parent.parent


class DecodingProcess:
    """Starts with the first picture. From any thread: one picture at a time."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def pixels(self, data: bytes, what: str) -> np.ndarray:
        """The picture in a file's bytes."""
        with self._lock:
            process = self._running()
            try:
                return self._asked(process, data, what)
            except (OSError, EOFError, TimeoutError) as error:
                process.kill()
                process.wait()
                self._process = None
                problem = (
                    "took too long" if isinstance(error, TimeoutError) else "ended its decoder"
                )
                raise RequestError(f"{what} cannot be decoded: it {problem}.") from None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", MODULE],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
                env={**os.environ, "PYTHONPATH": paths},
            )  # fmt: skip
            weakref.finalize(self, ended, self._process)
        return self._process

    def _asked(self, process: subprocess.Popen[bytes], data: bytes, what: str) -> np.ndarray:
        assert process.stdin is not None and process.stdout is not None, "both are pipes"
        until = time.monotonic() + self._seconds
        rest = memoryview(HEAD.pack(len(data), 1, 1) + data)
        while rest:  # it reads all of it before it decodes
            rest = rest[process.stdin.write(rest) or 0 :]
        size, rows, columns = HEAD.unpack(read(process.stdout, HEAD.size, until))
        found = read(process.stdout, size, until)
        if not rows:
            raise RequestError(f"{what}{found.decode()}")
        return np.frombuffer(found, np.uint8).reshape(rows, columns, 3)


def read(pipe: Any, size: int, until: float) -> bytes:
    """So many bytes of a pipe, or a TimeoutError."""
    found = bytearray()
    while len(found) < size:
        ready, _, _ = select.select([pipe], [], [], max(until - time.monotonic(), 0.0))
        if not ready:
            raise TimeoutError
        part = os.read(pipe.fileno(), min(size - len(found), 2**20))
        if not part:
            raise EOFError
        found += part
    return bytes(found)


def ended(process: subprocess.Popen[bytes]) -> None:
    """End the process: it does nothing else any more."""
    process.kill()
    process.wait()
