"""Frames on streams of bytes: a kind, a length, and as many bytes.

In: a socket, and how long to wait. Out: whole frames; a ConnectionError at the
end of the stream, and for a frame that is too long. Nothing is kept of a frame before it has come.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Final

HEAD = struct.Struct("!BQ")
MESSAGE: Final = 0
READY: Final = 1  # once everything is loaded
ANSWER: Final = 2
REFUSED: Final = 3  # the reason, as text
NO_MEMORY: Final = 4
# Prompt log-probabilities of a long prompt over a whole vocabulary are below this.
MOST_BYTES = 2**34
READ_AT_ONCE = 2**20
JOINED = 2**16  # bytes of a frame that is sent in one piece
Part = bytes | bytearray | memoryview
Wait = Callable[[], float | None]  # seconds that the next call on a socket may take; None: any


def until(end: float | None) -> Wait:
    """Wait no longer than until then; None: as long as it takes."""

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
    """A frame as one piece."""
    return HEAD.pack(kind, len(data)) + data


def unpacked(head: Part, most: int) -> tuple[int, int]:
    """Kind and length in the head of a frame; at most `most` bytes follow it."""
    kind, size = HEAD.unpack(head)
    if size > most:
        raise ConnectionError(f"a frame of {size} bytes: expected at most {most}")
    return kind, size
