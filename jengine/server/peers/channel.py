"""Calls between API processes: one request and one reply per connection, over Unix sockets.

In: questions. Out: the answers of all other processes. The sockets are in a directory of this user
only. Everything runs on the event loop. Must not know what questions mean.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from jengine.server.peers.board import Board
from jengine.server.peers.messages import PeerError, decode_question, encode
from jengine.wire import frames
from jengine.wire.message import Question

logger = logging.getLogger(__name__)
MOST_BYTES = 256 * 2**20
# Timeout in seconds of answers that do not wait for a step.
SECONDS = 5.0
A = TypeVar("A")
Handler = Callable[[Question[Any]], Awaitable[Any]]


class Peers:
    """Connections to the server's other API processes; none if it has only one."""

    def __init__(self, board: Board, folder: Path | None = None) -> None:
        """`folder` holds the processes' Unix sockets."""
        self.board = board
        self._folder = folder
        self._server: asyncio.Server | None = None  # uvloop closes an unreferenced server

    @property
    def count(self) -> int:
        """Number of API processes, this one included."""
        return self.board.count

    async def serve(self, handler: Handler) -> asyncio.Server | None:
        """Start to answer requests of the other processes."""
        if self._folder is None:
            return None

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # The caller has disconnected, or this process is shutting down.
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                _, asked = await _read(reader)
                await _write(writer, *await _reply(handler, asked))
            writer.close()

        self._server = await asyncio.start_unix_server(connected, self._socket(self.board.index))
        return self._server

    async def ask(self, question: Question[A], seconds: float | None = SECONDS) -> list[A]:
        """Ask all others and return their answers in order.

        Raises:
            PeerError: one of them did not answer within `seconds`.
        """
        others = [index for index in range(self.count) if index != self.board.index]
        return await asyncio.gather(*(self.ask_one(one, question, seconds) for one in others))

    async def ask_one(
        self, index: int, question: Question[A], seconds: float | None = SECONDS
    ) -> A:
        """Ask one process. Raises PeerError as `ask`."""
        try:
            async with asyncio.timeout(seconds):
                return await self._asked(index, question)
        except (OSError, asyncio.IncompleteReadError, msgspec.DecodeError) as error:
            why = str(error) or f"no answer within {seconds} s"
            where = f"API process {index} of {self.count}"
            raise PeerError(f"{where} does not answer: {why}") from error

    async def _asked(self, index: int, question: Question[A]) -> A:
        reader, writer = await asyncio.open_unix_connection(self._socket(index))
        try:
            await _write(writer, frames.MESSAGE, encode(question))
            kind, reply = await _read(reader)
        finally:
            writer.close()
        if kind == frames.REFUSED:
            raise PeerError(reply.decode())
        return question.read_answer(reply)

    def _socket(self, index: int) -> str:
        assert self._folder is not None, "there are no other processes"
        return str(self._folder / f"{index}.sock")


async def _reply(handler: Handler, data: bytes) -> tuple[int, bytes]:
    try:
        return frames.ANSWER, encode(await handler(decode_question(data)))
    except Exception as error:
        logger.warning("a question of another API process has failed", exc_info=error)
        return frames.REFUSED, f"{type(error).__name__}: {error}".encode("utf-8", "replace")


async def _write(writer: asyncio.StreamWriter, kind: int, data: bytes) -> None:
    writer.write(frames.packed(kind, data))
    await writer.drain()


async def _read(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    kind, size = frames.unpacked(await reader.readexactly(frames.HEAD.size), MOST_BYTES)
    return kind, await reader.readexactly(size)
