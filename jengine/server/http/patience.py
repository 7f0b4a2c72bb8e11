"""uvicorn's h11 protocol with a timeout for request heads.

Also offers the transport to streams (`chunked`).
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from jengine.server.http.chunked import offer

# Seconds from the connection, or a request's first byte, to the end of its head.
HEAD_TIMEOUT = 10.0


class PatientProtocol(H11Protocol):
    """HTTP protocol that closes a connection whose next request stays incomplete for too long."""

    _waiting: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._served: ASGIApp = self.app  # type: ignore[assignment]
        self.app = self._serve  # type: ignore[assignment]

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        offer(scope, self.transport, self.flow)
        await self._served(scope, receive, send)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._await_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._waiting is None:
            self._waiting = self.loop.call_later(HEAD_TIMEOUT, self._give_up)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        self._waiting = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
