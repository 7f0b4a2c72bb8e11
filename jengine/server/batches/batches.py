"""The server's batches, which run at a lower priority than clients' requests.

In: batches in a store. Out: their result files. Unfinished batches are resumed by the next process
that starts. Must not know HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path

from starlette.responses import Response

from jengine.errors import ConfigError, JengineError
from jengine.server.batches.batch_runner import BatchFiles, BatchProgress, patient, run_lines
from jengine.server.batches.files import AT_ONCE, ResultFile
from jengine.server.batches.lines import Ask
from jengine.server.batches.store import Store, new_id, now
from jengine.server.batches.types import Batch, Counts, FileObject, Problem, Problems, Status
from jengine.server.errors import ApiError
from jengine.server.http.disconnect import ended
from jengine.server.serving.service import Service

logger = logging.getLogger(__name__)
# Poll intervals in seconds: of a running batch, and of free capacity.
LOOK, GLANCE = 0.5, 0.05
# A priority below those of clients.
LEAST_URGENT = 2**30
# Limit of unfinished batches.
MOST_OPEN = 100


class SpareSeats:
    """Semaphore of batch requests: at most half of max_num_seqs, and none while all open requests
    together reach max_num_seqs."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._most = service.live.engine.schedule.max_num_seqs
        self._own = asyncio.Semaphore(max(1, self._most // 2))

    async def acquire(self) -> None:
        await self._own.acquire()
        try:
            while self._service.all_open_requests >= self._most:
                await asyncio.sleep(GLANCE)
        except BaseException:
            self._own.release()
            raise

    def release(self) -> None:
        self._own.release()


class Batches:
    """The batches that this process runs."""

    def __init__(
        self, store: Store, service: Service, ask: Ask, endpoints: Collection[str]
    ) -> None:
        """`ask` calls one of `endpoints`, at a lower priority than clients."""
        self.store = store
        self.endpoints = endpoints
        self._service = service
        self._ask = patient(service, ask)
        self._seats: SpareSeats | None = None
        self._running: dict[str, asyncio.Task[None]] = {}

    def resume(self) -> None:
        """Start all unfinished batches; `_run` leaves those whose files another process has
        locked."""
        for batch in self.store.all(Batch, "batch_"):
            if not batch.is_over:
                self.start(batch)

    def start(self, batch: Batch) -> None:
        task = asyncio.ensure_future(self._run(batch))
        self._running[batch.id] = task
        task.add_done_callback(lambda _: self._running.pop(batch.id))

    async def _run(self, batch: Batch) -> None:
        try:
            with (
                ResultFile(self.store.content(output_id(batch))) as results,
                ResultFile(self.store.content(error_id(batch))) as errors,
                self.store.content(batch.input_file_id).open("rb") as lines,
            ):
                longest = self._service.settings.max_body_bytes
                await self._answer(batch, BatchFiles(lines, results, errors, longest))
        except ConfigError as error:
            logger.info("%s is not run by this process: %s", batch.id, error)
        except FileNotFoundError:
            self._end(batch, "failed", f"The file {batch.input_file_id} is gone.")
        except JengineError as error:
            logger.warning("%s is interrupted: %s", batch.id, error)
        except Exception as error:
            logger.exception("%s has failed", batch.id)
            self._end(batch, "failed", f"Internal server error ({type(error).__name__}).")

    async def _answer(self, batch: Batch, files: BatchFiles) -> None:
        """Answer all lines, unless the batch is cancelled or expires before."""
        self._seats = self._seats or SpareSeats(self._service)
        progress = BatchProgress(completed=len(files.results), failed=len(files.errors or ()))
        finished = await asyncio.to_thread(files.finished)
        ask = only(batch.endpoint, self._ask)
        running = asyncio.ensure_future(
            run_lines(files, ask, self._seats, progress.count, finished)
        )
        try:
            while not running.done():
                await asyncio.wait({running}, timeout=LOOK)
                batch.request_counts.completed = progress.completed
                batch.request_counts.failed = progress.failed
                early = self._early_end(batch)
                if early is not None and not running.done():
                    await ended(running)
                    self._end(batch, early)
                    return
                self.store.put(batch)
            running.result()
        finally:
            await ended(running)
        self._end(batch, "completed")

    def _early_end(self, batch: Batch) -> Status | None:
        if self.store.cancellation(batch.id).exists():
            return "cancelled"
        return "expired" if now() >= batch.expires_at else None

    def _end(self, batch: Batch, status: Status, problem: str | None = None) -> None:
        """Store a batch's final status, with its results as files that clients can read."""
        setattr(batch, f"{status}_at", now())
        batch.status = status
        if problem is not None:
            batch.errors = Problems([Problem("batch_failed", problem)])
        batch.output_file_id = self._publish(output_id(batch), f"{batch.id}_output.jsonl")
        batch.error_file_id = self._publish(error_id(batch), f"{batch.id}_error.jsonl")
        self.store.put(batch)
        self.store.cancellation(batch.id).unlink(missing_ok=True)
        logger.info("%s is %s: %s", batch.id, status, batch.request_counts)

    def _publish(self, file_id: str, name: str) -> str | None:
        content = self.store.content(file_id)
        size = content.stat().st_size if content.exists() else 0
        if not size:
            content.unlink(missing_ok=True)
            return None
        self.store.put(FileObject(file_id, size, now(), name, "batch_output"))
        return file_id


def output_id(batch: Batch) -> str:
    """File id of a batch's answers, derived so that a restarted process appends to the same
    file."""
    return f"file-{batch.id.removeprefix('batch_')}"


def error_id(batch: Batch) -> str:
    """File id of its failed lines: the batch's digits reversed, to differ from `output_id`."""
    return f"file-{batch.id.removeprefix('batch_')[::-1]}"


def only(endpoint: str, ask: Ask) -> Ask:
    """Wrap `ask` to answer 400 for lines whose url is not the batch's endpoint."""

    async def asking(path: str, body: bytes, request_id: str) -> Response:
        if path != endpoint:
            return ApiError(
                400, f"url={path[1:101]!r}: the endpoint of this batch is {endpoint[1:]}.",
                param="url",
            ).response  # fmt: skip
        return await ask(path, body, request_id)

    return asking


def new_batch(endpoint: str, file: Path, file_id: str, window: str, hours: int) -> Batch:
    """Make a batch that starts now. Blocks while it counts the file's lines."""
    begun = now()
    return Batch(
        id=new_id("batch_"),
        endpoint=endpoint,
        input_file_id=file_id,
        completion_window=window,
        created_at=begun,
        in_progress_at=begun,
        expires_at=begun + 3600 * hours,
        request_counts=Counts(count_lines(file)),
    )


def count_lines(file: Path) -> int:
    """Count the lines that are not blank, reading AT_ONCE bytes at a time."""
    count, filled = 0, False
    with file.open("rb") as opened:
        while text := opened.readline(AT_ONCE):
            filled = filled or bool(text.strip())
            if text.endswith(b"\n"):
                count, filled = count + filled, False
    return count + filled
