"""Sends a dataset's requests at their arrival times and collects replies.

In: settings, conversations, an address. Out: a reply per request, and the seconds that all took.
"""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

import numpy as np

from jengine.bench.serve.reply import TimedReply
from jengine.bench.serve.requests import RequestWriter, Said
from jengine.bench.serve.samples import Conversation
from jengine.bench.serve.settings import LoadSettings
from jengine.client.connection import Connections
from jengine.client.errors import ServerFailed
from jengine.open_files import allow_connections


@dataclass(frozen=True)
class ServedLoad:
    """Replies of one load, in dataset order."""

    replies: list[TimedReply]
    seconds: float


class LoadGenerator:
    """Runs loads over shared connections. `told` is called after each reply."""

    def __init__(
        self,
        settings: LoadSettings,
        connections: Connections,
        writer: RequestWriter,
        told: Callable[[], object] = lambda: None,
    ) -> None:
        self._settings, self._connections, self._writer = settings, connections, writer
        self._told = told
        self._count = 0

    async def run(self, conversations: Sequence[Conversation]) -> ServedLoad:
        """Send all requests. Failures are recorded in their replies."""
        allow_connections(sum(map(len, conversations)))
        limit = self._settings.max_concurrency
        turn_of = asyncio.Semaphore(limit) if limit else nullcontext()
        times = arrivals(self._settings, len(conversations))
        gc.collect()
        gc.freeze()  # the dataset need not be looked at again and again
        began = time.perf_counter()
        tasks = []
        for conversation, due in zip(conversations, times, strict=True):
            if (early := began + due - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            tasks.append(asyncio.ensure_future(self._converse(conversation, turn_of)))
        replies = [reply for found in await asyncio.gather(*tasks) for reply in found]
        seconds = time.perf_counter() - began
        for reply in replies:
            reply.end()
        gc.unfreeze()
        return ServedLoad(replies, seconds)

    async def _converse(
        self, conversation: Conversation, turn_of: AbstractAsyncContextManager[object]
    ) -> list[TimedReply]:
        """Run all turns of a conversation. After a failed turn the rest count as failed without
        being sent, since each would contain the missing answer."""
        said, replies = Said(self._settings.backend), list[TimedReply]()
        arrived = time.perf_counter()
        for turn in conversation:
            if replies:
                replies[-1].end()
                said.answered(replies[-1].text)
            async with turn_of:
                reply = TimedReply(turn.prompt_len, arrived)
                if replies and not replies[-1].success:
                    reply.error = f"not sent: {replies[-1].error}"
                else:
                    self._count += 1
                    name = f"{self._settings.request_id_prefix}{self._count}"
                    request = self._writer.request(said.with_turn(turn), turn.output_len, name)
                    await self._send(request, reply)
            replies.append(reply)
            arrived = time.perf_counter()
            self._told()
        return replies

    async def _send(self, request: bytes, reply: TimedReply) -> None:
        try:
            await self._connections.exchange(request, reply)
        except ServerFailed as error:
            reply.error = reply.error or str(error)  # what the server said says more


def arrivals(settings: LoadSettings, count: int) -> list[float]:
    """Seconds after the start at which each of `count` requests arrives.

    Intervals follow a gamma distribution whose shape is the burstiness: 1 is a Poisson process,
    less comes in bursts, infinity is even. At one rate, they are stretched to last count / rate.
    """
    rates = [rate_at(settings, index, count) for index in range(count)]
    rng = np.random.default_rng(settings.seed)
    intervals = [interval(rng, rate, settings.burstiness) for rate in rates]
    times = np.cumsum(intervals)
    if settings.ramp_up_strategy is None and times.size and times[-1] > 0:
        times = times * (count / settings.request_rate / times[-1])
    return times.tolist()


def rate_at(settings: LoadSettings, index: int, count: int) -> float:
    """Request rate at the arrival of this request."""
    start, end = settings.ramp_up_start_rps, settings.ramp_up_end_rps
    if settings.ramp_up_strategy is None or start is None or end is None:
        return settings.request_rate
    progress = index / max(count - 1, 1)
    if settings.ramp_up_strategy == "linear":
        return start + (end - start) * progress
    return start * (end / start) ** progress


def interval(rng: np.random.Generator, rate: float, burstiness: float) -> float:
    """Seconds until the next request."""
    if math.isinf(rate):
        return 0.0
    if math.isinf(burstiness):
        return 1 / rate
    return float(rng.gamma(burstiness, 1 / (rate * burstiness)))
