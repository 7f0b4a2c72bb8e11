"""The client of an engine core in this process: a queue, and the lock around the core's steps."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, TypeVar

from jengine.counts import Counts
from jengine.engine.bell import Bell
from jengine.engine.core_state import CoreState
from jengine.engine.interpreter_end import check_not_ending, end_steps_at_exit
from jengine.engine.own_process import OwnProcess
from jengine.engine.protocol import Core
from jengine.engine.questions import CoreQuestion
from jengine.engine.sleeping import Sleeping
from jengine.errors import EngineDead, RequestError
from jengine.outputs import TokenDelta
from jengine.request import ReadPrompt, WireRequest

A = TypeVar("A")
T = TypeVar("T")
# Seconds between two looks at the core's counts while steps run.
COUNT_EVERY = 0.1


class InProcessClient:
    """The client of a core in this process: a queue, and the lock around the core's steps.

    Only this class calls the core. `add` and `abort` append to the queue without a lock, so they
    are safe at any moment, also when the garbage collector closes an abandoned stream in the middle
    of `schedule`. The thread that runs the next step takes them up first. Everything else runs
    between two steps.
    """

    def __init__(self, core: Core) -> None:
        self._bell = Bell()
        self.core = core
        self.sleeping = Sleeping()
        self._own = OwnProcess()
        # A string is the id of a request to abort.
        self._queue: deque[tuple[WireRequest, ReadPrompt | None] | str] = deque()
        self._ended: list[TokenDelta] = []  # last deltas that no step has returned yet
        self._stepping = threading.RLock()  # knows its thread, which `_alone` relies on
        self._next = threading.Lock()  # held by the thread that gets `_stepping` next
        self._steps = 0
        self._began: float | None = None  # when the step in progress began
        self._counted, self._counts = time.monotonic(), Counts()
        core.when_woken(self._bell.ring)
        end_steps_at_exit(self)

    @property
    def has_work(self) -> bool:
        """Whether `outputs` has something to do."""
        return bool(self._queue or self._ended) or self.core.has_work

    def add(self, wire: WireRequest) -> None:
        """Queue a request, or raise a RequestError if no schedule could ever answer it."""
        self.check_alive()
        self.core.check(wire)
        self._queue.append((wire, self.core.read(wire)))
        self._bell.ring()

    def abort(self, request_id: str) -> None:
        """Queue the end of a request."""
        self._queue.append(request_id)
        self._bell.ring()

    def outputs(self, wait: bool = True) -> list[TokenDelta]:
        """Run one step, unless what is queued leaves nothing to run. If it has found that every
        request waits for an event, return after the first one."""
        self._bell.hush()
        with self._between_steps():
            patience = 0.0
            if wait and self.core.has_work and not self.sleeping.tags:
                self._step()
                patience = self.core.patience
            ended, self._ended = self._ended, []  # only now: a step may fail
        if patience and not ended:
            self._bell.wait(patience)
        return ended

    def _step(self) -> None:
        self._began = time.monotonic()
        try:
            self._ended += self.core.step()
            self._ended += self.core.run_ahead()
        finally:
            self._began = None
            self._steps += 1
            if time.monotonic() - self._counted > COUNT_EVERY:
                self._count()

    def _count(self) -> None:
        self._counts, self._counted = self.counts(), time.monotonic()

    def between_steps(self, call: Callable[[], T]) -> T:
        """The result of a function that runs while no step does."""
        with self._between_steps():
            return call()

    def ask(self, question: CoreQuestion[A]) -> A:
        """The core's answer, between two steps if the question waits for that."""
        with self._between_steps() if question.waits else nullcontext():
            return question.answer(self)

    def counts(self) -> Counts:
        """The core's numbers, which say that it sleeps if it does."""
        return self.sleeping.noted(self.core.counts())

    def deliver(self, deltas: Sequence[TokenDelta]) -> None:
        """Have `outputs` return these as well."""
        self._ended += deltas

    def take_blocks(self) -> None:
        """Read the steps in flight and take all blocks from requests, which keep their tokens."""
        self.deliver(self.core.drain())
        emptied = self.core.reset_prefix_cache(reset_running_requests=True)
        assert emptied, "no request has blocks once all are preempted"

    def ring(self) -> None:
        """End a rest of `outputs`."""
        self._bell.ring()

    @property
    def weights_version(self) -> int:
        """How often the parameters were replaced."""
        return self.core.weights_version

    def update_weights(self, values: Any) -> int:
        """Use other parameters from the next step on. Returns the new version of the weights."""
        with self._between_steps():
            version = self.core.update_weights(values)
            self.sleeping.note_weights()
            return version

    def state(self) -> CoreState:
        """The counts of this moment, or, while a step runs, those of a moment ago."""
        if self._next.acquire(blocking=False):
            try:
                self._count_if_free()
            finally:
                self._next.release()
        now, began = time.monotonic(), self._began
        return CoreState(
            counts=self._counts,
            steps=self._steps,
            stepping=0.0 if began is None else now - began,
            compiling=began is not None and self.is_compiling,
            age=now - self._counted,
        )

    @property
    def is_compiling(self) -> bool:
        """Whether a step waits for a program that is being compiled."""
        return self.core.is_compiling

    def _count_if_free(self) -> None:
        if self._stepping.acquire(blocking=False):
            try:
                self._count()
            finally:
                self._stepping.release()

    def dump_stacks(self) -> None:
        """Nothing to do: its threads are this process's."""

    def when_dead(self, tell: Callable[[EngineDead], None]) -> None:
        """Nothing to do: the engine dies in a step, so in `outputs` or in a call of a user's."""

    def check_alive(self) -> None:
        """Raise EngineDead if the engine has stopped or belongs to another process."""
        self._own.check()
        self.core.check_alive()

    def shutdown(self) -> None:
        """Abort everything and give the device memory back.

        In a forked child it does nothing: devices and locks are the parent's.
        """
        if self._own.is_here:
            with self._alone():
                self._queue.clear()
                self._ended.clear()
                self.core.shutdown()

    def wait_for_step(self, seconds: float) -> None:
        """Return when the step in progress has ended, or after so many seconds."""
        if self._own.is_here and self._stepping.acquire(timeout=seconds):
            self._stepping.release()

    @contextmanager
    def _between_steps(self) -> Iterator[None]:
        """The core for this thread alone, which has been given everything queued so far."""
        self._own.check()
        with self._alone():
            self._take_up()
            yield

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Threads get the core in the order in which they came.

        A plain lock would go back to the thread that runs steps each time, for as long as it runs.
        """
        try:
            with self._next:
                self._stepping.acquire()
            check_not_ending()
            yield
        finally:
            # Ctrl-C may come while the lock is waited for: then it is not this thread's.
            with suppress(RuntimeError):
                self._stepping.release()

    def _take_up(self) -> None:
        """Give the core what is queued. Items that are queued meanwhile are taken up as well."""
        while self._queue:
            item = self._queue.popleft()
            try:
                ended = self.core.abort(item) if isinstance(item, str) else self.core.add(*item)
            except RequestError as error:
                assert not isinstance(item, str), "an abort refuses nothing"
                ended = refused(item[0], error)
            if ended is not None:
                self._ended.append(ended)


def refused(wire: WireRequest, error: RequestError) -> TokenDelta:
    """The only delta of a request that the core refuses."""
    return TokenDelta(
        request_id=wire.request_id,
        token_ids=[],
        finish_reason="error",
        message=str(error),
        refused=True,
    )
