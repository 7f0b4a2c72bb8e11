"""Requests that come together begin in their order, each in a pass of the event loop of its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from jengine.server.http.one_at_a_time import OneAtATime

REQUESTS = 20


def test_requests_that_come_together_leave_passes_to_the_tokens_of_others() -> None:
    passes, begun = 0, list[tuple[int, int]]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.append((scope["number"], passes))

    async def work() -> None:
        loop, paced = asyncio.get_running_loop(), OneAtATime(app)

        def count_pass() -> None:
            nonlocal passes
            passes += 1
            if len(begun) < REQUESTS - 1:
                loop.call_soon(count_pass)

        loop.call_soon(count_pass)
        requests = [
            asyncio.ensure_future(paced({"number": number}, None, None))  # type: ignore[arg-type]
            for number in range(REQUESTS)
        ]
        await asyncio.sleep(0)
        requests[3].cancel()  # its client has left before its turn
        await asyncio.wait(requests)

    asyncio.run(work())
    assert [number for number, _ in begun] == [n for n in range(REQUESTS) if n != 3]
    assert max(Counter(turn for _, turn in begun).values()) == 1
