"""First worker's server: runs the driver's plans, by an executor that includes all workers.

One thread queues steps as plans arrive, another waits for their results, so that the next step is
queued while one runs. Must not know requests, or who started this process.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import NoReturn

from jengine.errors import UnexpectedCompile
from jengine.executor.multihost.ending import end_process
from jengine.executor.multihost.messages import (
    AskWorkersHealth,
    CallProcesses,
    Fatal,
    Goodbye,
    LeaderReady,
    RunPlan,
    StepRefused,
    StepResult,
    WorkerAnswers,
    WorkersHealth,
)
from jengine.executor.multihost.peer import Peer
from jengine.executor.multihost.settings import MultihostSettings
from jengine.executor.protocol import Capacity, Executor
from jengine.plan import Plan
from jengine.wire.connection import Connection
from jengine.wire.message import Message, encode

DRIVER = "the driver"


class PlanServer:
    """Serves one driver until it says goodbye."""

    def __init__(self, connection: Connection, settings: MultihostSettings) -> None:
        self._peer = Peer(0, connection, settings, DRIVER)
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._to_read: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._step = -1
        self._end: Callable[[str], NoReturn] = end_process

    def tell_end(self, reason: str) -> None:
        """Send the driver the reason of a failure."""
        self._peer.send_last(encode(Fatal(reason)))

    def serve(self, workers: Executor, end: Callable[[str], NoReturn], capacity: Capacity) -> None:
        """Handle messages until the driver says goodbye. `end` kills all workers after a
        failure."""
        self._end = end
        self._peer.start(lambda _, message: self._inbox.put(message), end, self._begun)
        self._peer.send(encode(LeaderReady(capacity)))
        reader = threading.Thread(target=self._read, daemon=True)
        reader.start()
        with self._ending_all():
            while not isinstance(message := self._inbox.get(), Goodbye):
                self._take(workers, message)
        self._to_read.put(None)
        reader.join()
        workers.shutdown()
        self._peer.leave("it was shut down")

    def _begun(self) -> int:
        return self._step

    def _take(self, workers: Executor, message: Message) -> None:
        match message:
            case RunPlan(plan):
                self._step = plan.step
                self._to_read.put(self._submitted(workers, plan))
            case CallProcesses(method, arguments):
                self._to_read.put(
                    lambda: self._send(WorkerAnswers(workers.call_workers(method, arguments)))
                )
            case AskWorkersHealth():
                self._send(WorkersHealth(workers.health()))
            case _:
                self._end(f"the driver does not send {type(message).__name__}")

    def _submitted(self, workers: Executor, plan: Plan) -> Callable[[], None]:
        """Queue a step; returns a function that waits for it and answers the driver."""
        try:
            pending = workers.submit(plan)
        except UnexpectedCompile as error:  # in every worker, before any of the step ran
            return partial(self._send, StepRefused(str(error)))
        return lambda: self._send(StepResult(pending.result()))

    def _send(self, message: Message) -> None:
        self._peer.send(encode(message))

    def _read(self) -> None:
        with self._ending_all():
            while (job := self._to_read.get()) is not None:
                job()

    @contextlib.contextmanager
    def _ending_all(self) -> Iterator[None]:
        """An exception in this thread ends all workers: they would wait for it forever."""
        try:
            yield
        except BaseException as error:
            self._end(f"process 0 failed: {type(error).__name__}: {error}")
            raise
