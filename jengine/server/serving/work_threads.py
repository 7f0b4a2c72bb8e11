"""Lanes: a thread pool per kind of work, so that no kind waits for another.

In: functions. Out: their results; 503 for calls that never started, 400 for calls that took too
long. Threads cannot be killed, so long and untrusted work runs in confined processes, for which the
thread only waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from jengine.confined import errand as errands
from jengine.confined.errand import Errand, GivenUp
from jengine.server.errors import ApiError

T = TypeVar("T")
# Seconds after its deadline by which work that checks it has ended.
GRACE = 5.0
GLANCE = 0.05


class ThreadLane:
    """A small thread pool with time limits, used from the event loop."""

    def __init__(self, name: str, threads: int, seconds: float, *, confined: bool = False) -> None:
        """`seconds`: limit of waiting, and then of running. `confined`: run in killable processes
        if possible."""
        self.name = name
        self.threads = threads
        self.refused = 0  # calls that waited and never ran
        self.given_up = 0  # calls that ran for too long, or whose client left
        self._seconds = seconds
        self._confined = confined
        self._pool = ThreadPoolExecutor(threads, f"jengine-{name.replace(' ', '-')}")
        self._running = set[Errand]()

    @property
    def busy(self) -> int:
        """Number of threads at work."""
        return len(self._running)

    @property
    def is_stuck(self) -> bool:
        """Whether every thread is past its time limit."""
        overdue = sum(errand.overdue > GRACE for errand in tuple(self._running))
        return overdue >= self.threads

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run a call in the pool and return its result."""
        begun: list[Errand] = []
        job = self._pool.submit(self._work, begun, work, *arguments)
        try:
            try:
                async with asyncio.timeout(self._seconds):
                    return await asyncio.wrap_future(job)  # cancels a job that has not begun
            except TimeoutError:
                return await self._late(job, begun)
        except GivenUp:
            self.given_up += job.done()
            raise
        finally:
            if not job.done() and begun:  # cancelled by its request
                begun[0].cancel()
                self.given_up += 1

    def close(self) -> None:
        """Shut down: idle threads end, calls in processes are killed."""
        for errand in tuple(self._running):
            errand.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _work(self, begun: list[Errand], work: Callable[..., T], *arguments: Any) -> T:
        """Run a call in a pool thread."""
        errand = Errand(self._seconds, confined=self._confined)
        token = errands.current.set(errand)
        self._running.add(errand)
        begun.append(errand)
        try:
            return work(*arguments)
        finally:
            self._running.discard(errand)
            errands.current.reset(token)

    async def _late(self, job: Future[T], begun: list[Errand]) -> T:
        """Await a call that was queued; its time limit starts when it starts to run."""
        if job.cancelled():
            self.refused += 1
            raise ApiError(
                503,
                f"The server is busy with {self.name} of other requests: this one waited for "
                f"{self._seconds:g} seconds. Try again later.",
            )
        result = asyncio.wrap_future(job)
        try:
            while not result.done():
                left = begun[0].left if begun else GLANCE
                if left <= 0:
                    raise begun[0].given_up()
                await asyncio.wait((result,), timeout=left)
            return result.result()
        finally:
            result.cancel()  # else asyncio logs an unretrieved error
