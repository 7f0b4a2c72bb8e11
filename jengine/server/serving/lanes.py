"""Lanes: threads for one kind of work each, so that no kind waits for another.

In: functions. Out: what they return; 503 for what waited and never began, 400 for what took too
long. A thread cannot be ended: long and doubtful work is done by confined processes, which are
killed with their errand, and its thread only waits for them.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from jengine.confined import errand as errands
from jengine.confined.errand import Errand, GivenUp
from jengine.server.errors import ApiError

T = TypeVar("T")
# Seconds after its deadline in which work that heeds it has ended.
GRACE = 5.0
GLANCE = 0.05


class Work(Future[T]):
    """One call that waits in a lane, or runs; its errand is there once it has begun."""

    errand: Errand | None = None


class Lane:
    """A few threads. Used on the event loop."""

    def __init__(self, name: str, threads: int, seconds: float, *, confined: bool = False) -> None:
        """`seconds`: for which work may wait, and then run. `confined`: it goes to processes,
        wherever that is possible."""
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
        """Threads that work now."""
        return len(self._running)

    @property
    def is_stuck(self) -> bool:
        """Whether no thread is free, or will be: each does what should have ended long ago."""
        overdue = sum(errand.overdue > GRACE for errand in tuple(self._running))
        return overdue >= self.threads

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """The result of a call."""
        begun: list[Errand] = []
        context = contextvars.copy_context()
        job = self._pool.submit(context.run, self._work, begun, work, *arguments)
        future = asyncio.wrap_future(job)
        try:
            await asyncio.wait((future,), timeout=self._seconds)
            while not future.done():
                await self._hurry(future, job, begun)
            return future.result()
        except GivenUp:
            self.given_up += 1
            raise
        finally:
            if not future.done():
                self._give_up(job, begun)

    def close(self) -> None:
        """Let the threads end when they are idle; what runs in processes is given up."""
        for errand in tuple(self._running):
            errand.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _work(self, begun: list[Errand], work: Callable[..., T], *arguments: Any) -> T:
        """Run a call in one of the threads."""
        errand = Errand(self._seconds, confined=self._confined)
        errands.current.set(errand)
        self._running.add(errand)
        begun.append(errand)
        try:
            return work(*arguments)
        finally:
            self._running.discard(errand)

    async def _hurry(
        self, future: asyncio.Future[Any], job: Future[Any], begun: list[Errand]
    ) -> None:
        """Wait on for a call that has begun, until its time is over."""
        if not begun and job.cancel():
            self.refused += 1
            raise ApiError(
                503,
                f"The server is busy with {self.name} of other requests: this one waited for "
                f"{self._seconds:g} seconds. Try again later.",
            )
        if begun and begun[0].left <= 0:
            raise begun[0].given_up()
        await asyncio.wait((future,), timeout=begun[0].left if begun else GLANCE)

    def _give_up(self, job: Future[Any], begun: list[Errand]) -> None:
        """End a call that nobody waits for."""
        if not job.cancel() and begun:
            begun[0].cancel()
