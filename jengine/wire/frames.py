"""Frames on byte streams: kind, length, content.

In: a socket and a timeout. Out: whole frames; ConnectionError at the end of the stream and for
frames over the limit. Memory grows with the bytes received, not with the announced length.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Final

HEAD = struct.Struct("!BQ")
MESSAGE: Final = 0
READY: Final = 1  # the process has loaded everything
ANSWER: Final = 2
REFUSED: Final = 3  # the reason, as text
NO_MEMORY: Final = 4
# Exceeds the log-probabilities of a long prompt over the whole vocabulary.
MOST_BYTES = 2**34
READ_AT_ONCE = 2**20
JOINED = 2**16  # shorter frames are sent in one call
Part = bytes | bytearray | memoryview
Wait = Callable[[], float | None]  # timeout of the next socket call; None: none


def until(end: float | None) -> Wait:
    """Timeouts up to a deadline; None: no timeout."""

    def left() -> float | None:
        if end is None:
            return None
        seconds = end - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return seconds

    return left


def send(sock: socket.socket, kind: int, parts: Sequence[Part], wait: Wait) -> None:
    """Send a frame that consists of these parts."""
    size = sum(memoryview(part).nbytes for part in parts)
    pieces: Sequence[Part] = (HEAD.pack(kind, size), *parts)
    for piece in (b"".join(pieces),) if size < JOINED else pieces:
        sock.settimeout(wait())
        sock.sendall(piece)


def receive(sock: socket.socket, wait: Wait, most: int = MOST_BYTES) -> tuple[int, bytearray]:
    """Receive the next frame: its kind and its content."""
    kind, size = unpacked(exactly(sock, HEAD.size, wait), most)
    return kind, exactly(sock, size, wait)


def exactly(sock: socket.socket, size: int, wait: Wait) -> bytearray:
    """Receive exactly `size` bytes."""
    found = bytearray()
    while len(found) < size:
        sock.settimeout(wait())
        part = sock.recv(min(size - len(found), READ_AT_ONCE))
        if not part:
            raise ConnectionError("the connection was closed")
        found += part
    return found


def packed(kind: int, data: bytes) -> bytes:
    """Serialise a frame."""
    return HEAD.pack(kind, len(data)) + data


def unpacked(head: Part, most: int) -> tuple[int, int]:
    """Kind and length in the head of a frame; at most `most` bytes follow it."""
    kind, size = HEAD.unpack(head)
    if size > most:
        raise ConnectionError(f"a frame of {size} bytes: expected at most {most}")
    return kind, size
