"""New requests begin one by one: an ASGI middleware.

In: every request. Out: the same, no two in one pass of the event loop. The tokens of running
streams get out between them, where else each would wait for all requests that came together.
"""

from __future__ import annotations

import asyncio
from collections import deque

from starlette.types import ASGIApp, Receive, Scope, Send


class OneAtATime:
    """ASGI middleware that lets one request per pass of the event loop begin, in their order."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._waiting: deque[asyncio.Future[None]] = deque()  # `_begin_next` is due if any

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._turn()
        await self.app(scope, receive, send)

    async def _turn(self) -> None:
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._begin_next)
        self._waiting.append(turn)
        await turn

    def _begin_next(self) -> None:
        turn = self._waiting.popleft()
        if not turn.cancelled():
            turn.set_result(None)
        if self._waiting:
            turn.get_loop().call_soon(self._begin_next)
