"""Runs coroutines in tests of AsyncLLM, and reads their streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from jengine import RequestOutput


def run(work: Coroutine[Any, Any, Any], seconds: float = 30) -> Any:
    """The result of a coroutine, which must end within this time."""
    return asyncio.run(asyncio.wait_for(work, seconds))


async def last(outputs: AsyncIterator[RequestOutput]) -> RequestOutput:
    """The last output of a stream, which must be a finished one."""
    final = None
    async for output in outputs:
        final = output
    assert final is not None and final.finished
    return final
