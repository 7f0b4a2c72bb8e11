"""Runs a batch: a bounded number of lines concurrently, each result written when it is complete.

In: a file of lines, a function that answers requests. Out: result files, in order of completion.
May be killed at any moment: the next run skips lines that have results. Must not know who runs it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from starlette.responses import Response

from jengine.errors import RETRY_AFTER, EngineDead
from jengine.server.batches.files import Finished, ResultFile, lines_of
from jengine.server.batches.lines import Ask, BatchLine, BatchResult, answered
from jengine.server.phase import Phase
from jengine.server.serving.service import Service

logger = logging.getLogger(__name__)
# Seconds between progress lines in the log.
TOLD_EVERY = 10.0
# How often a request may be refused for lack of room while no other is running.
MOST_REFUSALS = 3
ENDING = (Phase.DEAD, Phase.DRAINING)
# In responses of requests aborted by a shutdown. Inside a JSON string its quotes would be escaped.
ABORTED = b'"finish_reason":"abort"'


class Seats(Protocol):
    """Limits how many lines run at once: `acquire` before a line, `release` after it."""

    async def acquire(self) -> object: ...
    def release(self) -> None: ...


@dataclass
class BatchProgress:
    """How many lines of a batch have results."""

    earlier: int = 0  # from earlier runs
    completed: int = 0
    failed: int = 0
    began: float = field(default_factory=time.monotonic)
    _told: float = field(default_factory=time.monotonic)

    def count(self, result: BatchResult) -> None:
        """Count a result, and log progress periodically."""
        if result.error is None:
            self.completed += 1
        else:
            self.failed += 1
        now = time.monotonic()
        if now - self._told >= TOLD_EVERY:
            self._told = now
            logger.info("Batch: %s", self)

    def __str__(self) -> str:
        done = self.completed + self.failed
        rate = done / max(time.monotonic() - self.began, 1e-9)
        before = f", and {self.earlier} before" if self.earlier else ""
        return f"{done} lines done, {self.failed} of them failed{before}; {rate:.3g} lines/s"


@dataclass
class BatchFiles:
    """Input and result files of a batch."""

    lines: BinaryIO
    results: ResultFile
    errors: ResultFile | None = None  # of failed lines; None: these go to `results`
    longest: int = 32 * 2**20  # bytes of a line

    def finished(self) -> Finished:
        """Lines that have a result from an earlier run."""
        return Finished(*[one for one in (self.results, self.errors) if one is not None])

    def put(self, result: BatchResult) -> None:
        where = self.results if result.error is None or self.errors is None else self.errors
        where.put(result)


async def run_lines(
    files: BatchFiles,
    ask: Ask,
    seats: Seats,
    noted: Callable[[BatchResult], None],
    finished: Finished,
) -> None:
    """Answer all unfinished lines. Raises the first error that concerns more than one line."""

    async def one(line: BatchLine) -> None:
        try:
            result = await answered(line, ask)
            files.put(result)
            noted(result)
        finally:
            seats.release()

    try:
        async with asyncio.TaskGroup() as group:
            async for line in lines_of(files.lines, files.longest):
                if line not in finished:
                    await seats.acquire()
                    group.create_task(one(line))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


def patient(service: Service, ask: Ask) -> Ask:
    """Wrap `ask` to retry requests that are refused for lack of room. Raises EngineDead."""

    async def asking(path: str, body: bytes, request_id: str) -> Response:
        refusals = 0
        while True:
            response = await ask(path, body, request_id)
            service.check_alive()
            if response.status_code != 503 and not (
                service.phase in ENDING and ABORTED in response.body
            ):
                return response
            if service.phase in ENDING:
                raise EngineDead("The engine is stopped. The batch goes on when it is run again.")
            refusals += not service.all_open_requests
            if refusals >= MOST_REFUSALS:
                return response
            await asyncio.sleep(RETRY_AFTER)

    return asking
