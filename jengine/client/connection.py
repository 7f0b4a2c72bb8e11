"""Concurrent requests over keep-alive connections in one asyncio loop.

In: an address, serialised requests. Out: response bodies as they arrive, with their arrival time,
to a Receiver.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Protocol

from jengine.client.address import Address
from jengine.client.errors import ServerFailed
from jengine.client.response_reader import BadResponse, ResponseReader


class Receiver(Protocol):
    """Consumes a response incrementally."""

    def receive(self, response: ResponseReader, body: bytes, now: float) -> None:
        """Take the next part of the body; `now` is time.perf_counter() at arrival."""
        ...


class ClientConnection(asyncio.Protocol):
    """One keep-alive connection with one exchange in flight."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._response = ResponseReader()
        self._receiver: Receiver | None = None
        self._ended: asyncio.Future[None] | None = None
        self.is_open = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport, self.is_open = transport, True

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._receiver is None:  # unsolicited bytes
            self.close()
            return
        try:
            body = self._response.feed(data)
            if self._response.status:
                self._receiver.receive(self._response, body, now)
        except (BadResponse, ValueError) as error:
            self._fail(ServerFailed(f"the server sent what is not understood: {error}"))
            return
        if self._response.complete:
            self.is_open = self.is_open and self._response.stays_open
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._response.end()
        if self._response.complete:
            self._end()
        else:
            self._fail(ServerFailed(f"the server closed the connection{f': {exc}' if exc else ''}"))

    async def exchange(self, request: bytes, receiver: Receiver) -> None:
        """Send a request and wait until its response is complete."""
        assert self._transport is not None and self._receiver is None, "one exchange at a time"
        self._response = ResponseReader(to_head=request.startswith(b"HEAD "))
        self._receiver = receiver
        self._ended = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await self._ended
        except asyncio.CancelledError:
            self.close()  # the server notices, and aborts the request
            raise

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    def _end(self) -> None:
        ended, self._ended, self._receiver = self._ended, None, None
        if ended is not None and not ended.done():
            ended.set_result(None)

    def _fail(self, error: ServerFailed) -> None:
        ended, self._ended, self._receiver = self._ended, None, None
        self.close()
        if ended is not None and not ended.done():
            ended.set_exception(error)


class Connections:
    """Pool of keep-alive connections to one server."""

    def __init__(self, address: Address, security: ssl.SSLContext | None = None) -> None:
        self.address = address
        self._security = security
        self._idle: list[ClientConnection] = []
        self._all: set[ClientConnection] = set()

    async def exchange(self, request: bytes, receiver: Receiver) -> None:
        """Send a request on an idle or new connection."""
        connection = self._take() or await self._open()
        try:
            await connection.exchange(request, receiver)
        finally:
            if connection.is_open:
                self._idle.append(connection)
            else:
                connection.close()
                self._all.discard(connection)

    def close(self) -> None:
        for connection in self._all:
            connection.close()

    def _take(self) -> ClientConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:  # the server may have closed it meanwhile
                return connection
            self._all.discard(connection)
        return None

    async def _open(self) -> ClientConnection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                ClientConnection, self.address.host, self.address.port, ssl=self._security
            )
        except OSError as error:
            raise ServerFailed(f"{self.address} cannot be reached: {error}") from error
        self._all.add(connection)
        return connection


def security_of(address: Address, insecure: bool = False) -> ssl.SSLContext | None:
    """SSL context of an https address, None for http; `insecure` skips certificate verification."""
    if not address.secure:
        return None
    context = ssl.create_default_context()
    if insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
