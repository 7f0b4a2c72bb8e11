"""Driver's executor: sends plans to the first worker, and gets results in the same order.

In: plans. Out: StepOutputs, or EngineDead with the reason as soon as a worker is lost. No jax. Must
not know who started the workers.
"""

from __future__ import annotations

import atexit
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from msgspec import structs

from jengine.errors import EngineDead, UnexpectedCompile, UnsupportedFeature
from jengine.executor.calls import CALLS
from jengine.executor.multihost.messages import (
    AskWorkersHealth,
    CallProcesses,
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
from jengine.executor.protocol import Capacity, WorkerHealth
from jengine.forks import not_in_forks
from jengine.outputs import StepOutput
from jengine.plan import Plan
from jengine.wire.connection import Connection
from jengine.wire.message import Message, encode

T = TypeVar("T")
READY_SECONDS = 60.0


class RemoteStep:
    """Future of a step sent to the workers."""

    def __init__(self, executor: RemoteExecutor, arrived: Future[StepOutput]) -> None:
        self.void = False  # an earlier step was refused, so this one's tokens are meaningless
        self._executor = executor
        self._arrived = arrived

    @property
    def ready(self) -> bool:
        return self._arrived.done()

    @property
    def has_left(self) -> bool:
        return True  # workers advance pipelines by themselves

    def result(self) -> StepOutput:
        executor = self._executor
        executor.in_flight.remove(self)
        try:
            return executor.wait(self._arrived, executor.settings.stuck, "a step")
        except UnexpectedCompile:
            if self.void:  # its output is dropped
                return StepOutput(np.zeros((0, 1), np.int32))
            for step in executor.in_flight:
                step.void = True
            raise


class RemoteExecutor:
    """Runs plans in workers that another object starts and stops."""

    def __init__(
        self,
        connection: Connection,
        settings: MultihostSettings,
        workers: Sequence[str],
        stop: Callable[[], None],
    ) -> None:
        """`workers` describes each worker, by rank; `stop` ends everything started with them."""
        self.settings = settings
        self.workers = tuple(workers)
        self._stop = stop
        self._failure: str | None = None
        self._step = -1
        self.in_flight: list[RemoteStep] = []  # results not read yet
        self._changing = threading.Lock()
        # By type of answer; answers of one type arrive in order.
        self._waiting: dict[type[Message], deque[Future[Any]]] = defaultdict(deque)
        ready: Future[Capacity] = Future()
        self._waiting[LeaderReady].append(ready)
        self._peer = Peer(0, connection, settings)
        self._peer.start(self._receive, self._fail, lambda: self._step)
        self._at_exit = not_in_forks(self.shutdown)
        atexit.register(self._at_exit)
        self.capacity = self.wait(ready, READY_SECONDS, "the first message")

    def submit(self, plan: Plan) -> RemoteStep:
        self._step = plan.step
        step = RemoteStep(self, self._ask(RunPlan(plan), StepResult))
        self.in_flight.append(step)
        return step

    def update_weights(self, values: Any) -> None:
        """Refused: workers cannot address arrays of the driver."""
        raise UnsupportedFeature(
            "the parameters of this engine are in its workers' memory, so arrays of this process "
            "cannot replace them. Make a new engine of a folder that has the new ones."
        )

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        answers = self._ask(CallProcesses(method, arguments), WorkerAnswers)
        return self.wait(answers, CALLS[method].seconds, method)

    def health(self) -> list[WorkerHealth]:
        """Health of all workers, as known to the first one."""
        answer = self._ask(AskWorkersHealth(), WorkersHealth)
        found = self.wait(answer, self.settings.silence, "a question after their health")
        return [structs.replace(one, where=self.workers[one.rank]) for one in found]

    def shutdown(self) -> None:
        atexit.unregister(self._at_exit)
        with self._changing:
            self._failure = self._failure or "the engine was shut down"
        self._peer.leave("it was shut down")
        self._stop()

    def wait(self, arrived: Future[T], seconds: float, what: str) -> T:
        """Wait for a future. Raises EngineDead after the deadline or if workers are lost."""
        try:
            return arrived.result(seconds)
        except TimeoutError:
            self._fail(f"workers have not answered {what} for {seconds:g} s")
            return arrived.result(READY_SECONDS)  # failed by `_fail`, or just arrived

    def _ask(self, message: Message, answer: type[Message]) -> Future[Any]:
        arrived: Future[Any] = Future()
        with self._changing:
            if self._failure is not None:
                raise EngineDead(self._failure)
            self._waiting[answer].append(arrived)
            self._peer.send(encode(message))
        return arrived

    def _receive(self, _rank: int, message: Message) -> None:
        match message:
            case Goodbye(reason):
                self._fail(f"the workers have left: {reason}")
            case StepRefused(problem):
                self._deliver(StepResult, UnexpectedCompile(problem))
            case _:
                self._deliver(type(message), *structs.astuple(message))

    def _deliver(self, kind: type[Message], *answer: Any) -> None:
        """Resolve the oldest future that waits for such an answer, unless it has already failed."""
        with self._changing:
            arrived = self._waiting[kind].popleft() if self._waiting[kind] else None
            if arrived is not None and self._failure is None:
                settle(arrived, *answer)
        if arrived is None:
            self._fail(f"a worker does not send {kind.__name__} to its driver")

    def _fail(self, reason: str) -> None:
        """Fail every waiting future and stop the workers. The first reason is kept."""
        with self._changing:
            if self._failure is not None:
                return
            self._failure = reason
            where = ", ".join(f"process {i}: {name}" for i, name in enumerate(self.workers))
            error = EngineDead(f"{reason}. Workers were {where}. Create a new engine.")
            for arrived in chain.from_iterable(self._waiting.values()):
                if not arrived.done():
                    settle(arrived, error)
        self._peer.leave(reason)
        self._stop()


def settle(arrived: Future[Any], answer: Any) -> None:
    if isinstance(answer, Exception):
        arrived.set_exception(answer)
    else:
        arrived.set_result(answer)
