"""Cancels work whose client disconnects. Starlette itself cancels only streams."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from jengine.server.errors import ClientLeft

T = TypeVar("T")


async def unless_client_leaves(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`; if the client disconnects first, cancel it and raise ClientLeft."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(client_leaves(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeft
        return working.result()
    finally:
        await ended(working, leaving)


async def client_leaves(receive: Receive) -> None:
    """Return when the client disconnects. The body must have been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def ended(*tasks: asyncio.Future[Any]) -> None:
    """Cancel the tasks and wait for all of them; their exceptions are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
