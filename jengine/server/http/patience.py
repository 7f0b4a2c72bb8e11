"""uvicorn's h11 protocol, with a limit on how long the head of a request may take to arrive.

It also offers streams a short way to the connection, and lets requests that may run the model begin
in turn.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from jengine.server.http.chunked import offer
from jengine.server.http.turns import End, RequestTurns, no_turn

# Seconds from the first byte, or the connection, to the end of a request's head.
HEAD_TIMEOUT = 10.0
# How requests begin that may run the model. Others, such as those for health, wait for no turn.
IN_TURN = b"POST "


class PatientProtocol(H11Protocol):
    """HTTP protocol that closes a connection whose next request stays incomplete for too long."""

    _waiting: asyncio.TimerHandle | None = None

    def __init__(self, turns: RequestTurns, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._turns = turns
        self._held = b""  # the begin of a request that waits for its turn
        self._end_turn: End = no_turn
        self._served: ASGIApp = self.app  # type: ignore[assignment]
        self.app = self._serve  # type: ignore[assignment]

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        offer(scope, self.transport, self.flow)
        await self._served(scope, receive, send)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._held:
            self._held += data
        elif self._is_idle and data.startswith(IN_TURN):
            self._hold(data)
        else:
            self._receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._end_turn()
        super().connection_lost(exc)

    @property
    def _is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _hold(self, data: bytes) -> None:
        """Keep the begin of a request until its turn, and read no more meanwhile."""
        self._stop_waiting()
        self._unset_keepalive_if_required()
        self.transport.pause_reading()
        self._held = data
        self._turns.enter(self._begin)

    def _begin(self, end: End) -> None:
        data, self._held = self._held, b""
        self._end_turn = end
        if not self.transport.is_closing():
            self.transport.resume_reading()
            self._receive(data)
        if self._is_idle or self.cycle.more_body:  # the client has the rest
            end()

    def on_response_complete(self) -> None:
        self._end_turn()
        super().on_response_complete()

    def _receive(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_idle:
            self._await_head()
        else:
            self._stop_waiting()

    def _await_head(self) -> None:
        if self._waiting is None:
            self._waiting = self.loop.call_later(HEAD_TIMEOUT, self._give_up)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        self._waiting = None
        if self._is_idle:
            self.transport.close()


def protocol_with(turns: RequestTurns) -> type[asyncio.Protocol]:
    """The protocol's factory as uvicorn takes it, for connections that share these turns."""
    factory: Any = partial(PatientProtocol, turns)
    return factory
