"""Messages between a confined process and the one that asks it: a kind, a length, bytes.

In: a socket, until when. Out: whole messages, or TimeoutError and EOFError.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from typing import Final

HEAD = struct.Struct("<BQ")
ASKED: Final = 0
READY: Final = 1  # once everything is loaded
ANSWER: Final = 2
REFUSED: Final = 3  # the text of a RequestError
NO_MEMORY: Final = 4
Part = bytes | bytearray | memoryview


def send(sock: socket.socket, kind: int, parts: Sequence[Part], until: float | None) -> None:
    """Send a message that consists of these parts."""
    sizes = sum(memoryview(part).nbytes for part in parts)
    for part in (HEAD.pack(kind, sizes), *parts):
        set_deadline(sock, until)
        sock.sendall(part)


def receive(sock: socket.socket, until: float | None) -> tuple[int, bytearray]:
    """Receive the next message: its kind and its content."""
    kind, size = HEAD.unpack(exactly(sock, HEAD.size, until))
    return kind, exactly(sock, size, until)


def exactly(sock: socket.socket, size: int, until: float | None) -> bytearray:
    """Receive exactly `size` bytes. Raises EOFError if the connection ends before."""
    found = bytearray(size)
    rest = memoryview(found)
    while rest:
        set_deadline(sock, until)
        count = sock.recv_into(rest)
        if not count:
            raise EOFError
        rest = rest[count:]
    return found


def set_deadline(sock: socket.socket, until: float | None) -> None:
    """Let the next call on the socket end by then; None: it may wait."""
    left = None if until is None else until - time.monotonic()
    if left is not None and left <= 0:
        raise TimeoutError
    sock.settimeout(left)
