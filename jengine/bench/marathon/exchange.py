"""One HTTP request on its own connection, by a client that may read slowly or disconnect.

In: a route and a body. Out: what came back. HTTP/1.0, so that the server closes the connection at
the end and the bytes of a body are the body.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any, NamedTuple

PIECE = 65536
SLOW_PIECE = 256
DONE = "data: [DONE]"


class Manner(NamedTuple):
    """How a client reads: speed, timeout, and when it disconnects."""

    leaves_after: int | None = None  # bytes of the response, then it closes the connection
    pause: float = 0.0  # seconds after each small piece that it reads
    patience: float = 120.0  # seconds, then it gives up


PATIENT = Manner()


class SeenReply(NamedTuple):
    """A client's view of a response. Status 0: no valid HTTP."""

    status: int
    headers: dict[str, str]
    body: str
    left: bool = False  # the client closed the connection itself
    problem: str = ""

    @property
    def events(self) -> list[dict[str, Any]]:
        """The SSE events, without the final [DONE]."""
        lines = (line for line in self.body.split("\n\n") if line.startswith("data: "))
        return [json.loads(line[6:]) for line in lines if line != DONE]

    @property
    def is_whole(self) -> bool:
        """Whether the complete response has arrived."""
        if "text/event-stream" in self.headers.get("content-type", ""):
            return self.body.rstrip().endswith(DONE)
        return len(self.body.encode()) == int(self.headers.get("content-length", -1))

    @property
    def has_error(self) -> bool:
        """Whether the stream ended with an error event."""
        return any("error" in event for event in self.events)


async def exchange(
    port: int, method: str, path: str, body: Any = None, manner: Manner = PATIENT
) -> SeenReply:
    """Send a request to a local server, and read as `manner` says. A body of bytes is sent
    unchanged."""
    is_ready = isinstance(body, bytes)
    data = body if is_ready else b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    got = bytearray()
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(manner.patience):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=PIECE)
            writer.write(head.encode() + data)
            await writer.drain()
            left = await _read(reader, got, manner)
        return _reply(bytes(got), left=left)
    except (OSError, TimeoutError) as error:
        return _reply(bytes(got), problem=f"{type(error).__name__}: {error}")
    finally:
        if writer is not None:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def _read(reader: asyncio.StreamReader, got: bytearray, manner: Manner) -> bool:
    """Read to the end; True if the client disconnects before it."""
    size = SLOW_PIECE if manner.pause else PIECE
    while manner.leaves_after is None or len(got) < manner.leaves_after:
        piece = await reader.read(size)
        if not piece:
            return False
        got += piece
        await asyncio.sleep(manner.pause)
    return True


def _reply(got: bytes, *, left: bool = False, problem: str = "") -> SeenReply:
    head, found, body = got.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    status = first.split(" ")[1] if found and first.startswith("HTTP/1.") else "0"
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines)
    }
    return SeenReply(int(status), headers, body.decode("utf-8", "replace"), left, problem)
