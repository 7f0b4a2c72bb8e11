"""A confined process from within: answers one message after the other, within its memory.

In: what makes a function from bytes to bytes, and says how much memory it may take. It ends by
itself when it was not asked for a while, or has grown: the next message goes to a new process.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from jengine.errors import RequestError
from jengine.wire import frames
from jengine.wire.frames import Part

IDLE_SECONDS = 60.0
# What one that answered may keep of its memory, beyond what it had when it was ready.
KEPT_BYTES = 128 * 2**20
MIB = 2**20
NICE = 5  # steps of the engine go first
Answer = Callable[[bytearray], Sequence[Part]]


def serve(
    prepare: Callable[[bytearray], tuple[Answer, int]],
    *,
    sock: socket.socket | None = None,
    idle_seconds: float = IDLE_SECONDS,
) -> None:
    """Answer messages until the connection closes or idles. `prepare` makes the answering function
    from the first message, and returns how much memory it may take beyond that."""
    sock = sock or socket.socket(fileno=0)
    at_leisure = frames.until(None)
    _, job = frames.receive(sock, at_leisure)
    answer, most_bytes = prepare(job)
    limit_memory(most_bytes)
    os.nice(NICE)
    usual = resident_bytes()
    frames.send(sock, frames.READY, (), at_leisure)
    with suppress(TimeoutError, ConnectionError):
        while resident_bytes() - usual < KEPT_BYTES:
            _, asked = frames.receive(sock, frames.until(time.monotonic() + idle_seconds))
            kind, parts = answered(answer, asked)
            frames.send(sock, kind, parts, at_leisure)
            del asked, parts


def answered(answer: Answer, asked: bytearray) -> tuple[int, Sequence[Part]]:
    """The reply to a message."""
    try:
        return frames.ANSWER, answer(asked)
    except RequestError as error:
        return frames.REFUSED, (str(error).encode("utf-8", "replace"),)
    except MemoryError:
        return frames.NO_MEMORY, ()


def limit_memory(more: int) -> None:
    """Limit the address space to its current size plus `more` bytes."""
    if sys.platform == "linux":
        most = statm_bytes(0) + more
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def resident_bytes() -> int:
    """Resident memory of this process; its peak where the system does not report that."""
    if sys.platform == "linux":
        return statm_bytes(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def statm_bytes(field: int) -> int:
    """A number of Linux about the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[field]) * resource.getpagesize()
