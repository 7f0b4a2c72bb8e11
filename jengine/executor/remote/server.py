"""The first worker's end: runs the driver's plans, with the other workers if there are some.

One thread queues steps as plans come, another waits for their results, so that the next step is
queued while one runs. Must not know requests, or who started this process.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import NoReturn, Protocol

from jengine.errors import UnexpectedCompile
from jengine.executor.multihost.connection import Connection
from jengine.executor.multihost.messages import (
    AskHealth,
    CallWorkers,
    Fatal,
    Goodbye,
    Health,
    Ready,
    RunPlan,
    StepRefused,
    StepResult,
    WorkerAnswers,
    encode,
)
from jengine.executor.multihost.peer import Peer
from jengine.executor.multihost.settings import MultihostSettings
from jengine.executor.protocol import Capacity, Executor, PendingOutput, WorkerHealth
from jengine.outputs import StepOutput
from jengine.plan import Plan
from jengine.wire.message import Message

DRIVER = "the driver"


class Workers(Protocol):
    """All workers, as the first worker reaches them."""

    def submit(self, plan: Plan) -> PendingOutput:
        """Queue a step in every worker."""
        ...

    def read(self, pending: PendingOutput) -> StepOutput:
        """Wait for the oldest step that was not read yet."""
        ...

    def call(self, method: str, arguments: bytes) -> list[bytes]:
        """The answer of every worker."""
        ...

    def health(self) -> list[WorkerHealth]:
        """The health of every worker."""
        ...

    def leave(self) -> None:
        """Release memory and end normally."""
        ...

    def end(self, reason: str) -> NoReturn:
        """End every worker after a failure."""
        ...


class ExecutorWorkers:
    """The workers behind an executor of this process: it alone, or all that it directs. The methods
    are described in the protocol above."""

    def __init__(self, executor: Executor, end: Callable[[str], NoReturn]) -> None:
        self._executor = executor
        self._end = end

    def submit(self, plan: Plan) -> PendingOutput:
        return self._executor.submit(plan)

    def read(self, pending: PendingOutput) -> StepOutput:
        return pending.result()

    def call(self, method: str, arguments: bytes) -> list[bytes]:
        return self._executor.call_workers(method, arguments)

    def health(self) -> list[WorkerHealth]:
        return self._executor.health()

    def leave(self) -> None:
        self._executor.shutdown()

    def end(self, reason: str) -> NoReturn:
        self._end(reason)


class PlanServer:
    """Serves one driver until it says goodbye."""

    def __init__(self, connection: Connection, settings: MultihostSettings) -> None:
        self._peer = Peer(0, connection, settings, DRIVER)
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._to_read: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._step = -1

    def tell_end(self, reason: str) -> None:
        """Send the driver the reason of a failure."""
        self._peer.send_last(encode(Fatal(reason)))

    def serve(self, workers: Workers, capacity: Capacity) -> None:
        """Handle messages until the driver says goodbye."""
        self._peer.start(lambda _, message: self._inbox.put(message), workers.end, self._begun)
        self._peer.send(encode(Ready(capacity)))
        reader = threading.Thread(target=self._read, args=(workers,), daemon=True)
        reader.start()
        with self._ending_all(workers):
            while not isinstance(message := self._inbox.get(), Goodbye):
                self._take(workers, message)
        self._to_read.put(None)
        reader.join()
        workers.leave()
        self._peer.leave("it was shut down")

    def _begun(self) -> int:
        return self._step

    def _take(self, workers: Workers, message: Message) -> None:
        match message:
            case RunPlan(plan):
                self._step = plan.step
                self._to_read.put(self._submitted(workers, plan))
            case CallWorkers(method, arguments):
                self._to_read.put(
                    lambda: self._send(WorkerAnswers(workers.call(method, arguments)))
                )
            case AskHealth():
                self._send(Health(workers.health()))
            case _:
                workers.end(f"the driver does not send {type(message).__name__}")

    def _submitted(self, workers: Workers, plan: Plan) -> Callable[[], None]:
        """Queue a step; returns the function that answers the driver when it has ended."""
        try:
            pending = workers.submit(plan)
        except UnexpectedCompile as error:  # in all workers alike, before anything of the step ran
            return partial(self._send, StepRefused(str(error)))
        return lambda: self._send(StepResult(workers.read(pending)))

    def _send(self, message: Message) -> None:
        self._peer.send(encode(message))

    def _read(self, workers: Workers) -> None:
        with self._ending_all(workers):
            while (job := self._to_read.get()) is not None:
                job()

    @contextlib.contextmanager
    def _ending_all(self, workers: Workers) -> Iterator[None]:
        """End the process: no thread waits for one that failed."""
        try:
            yield
        except BaseException as error:
            workers.end(f"process 0 failed: {type(error).__name__}: {error}")
            raise
