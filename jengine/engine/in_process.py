"""EngineClient of a core in this process."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from jengine.counts import Counts
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
# Seconds between updates of the core's counts while steps run.
COUNT_EVERY = 0.1


class InProcessClient:
    """A queue, and the lock around the core's steps; only this class calls the core.

    `add` and `abort` append to the queue without a lock, so they are safe at any moment, even when
    the garbage collector closes an abandoned stream inside `schedule`. The thread that runs the
    next step consumes the queue. All other changes of the core happen between two steps.
    """

    def __init__(self, core: Core) -> None:
        self._bell = Bell()
        self.core = core
        self.sleeping = Sleeping()
        self._own = OwnProcess()
        # A string is the id of a request to abort.
        self._queue: deque[tuple[WireRequest, ReadPrompt | None] | str] = deque()
        self._ended: list[TokenDelta] = []  # deltas for the next `outputs`
        self._stepping = threading.RLock()  # not a Lock: `_alone` must only release its own
        self._next = threading.Lock()  # held by the thread that gets `_stepping` next
        self._steps = 0
        self._began: float | None = None  # when the step in progress began
        self._counted, self._counts = time.monotonic(), Counts()
        core.when_woken(self._bell.ring)
        end_steps_at_exit(self)

    @property
    def has_work(self) -> bool:
        return bool(self._queue or self._ended) or self.core.has_work

    def add(self, wire: WireRequest) -> None:
        self.check_alive()
        self._queue.append((wire, self.core.read(wire)))
        self._bell.ring()

    def abort(self, request_id: str) -> None:
        self._queue.append(request_id)
        self._bell.ring()

    def outputs(self, wait: bool = True) -> list[TokenDelta]:
        """Run one step if there is work; if all requests wait for events, return at the first."""
        self._bell.hush()
        with self._between_steps():
            patience = 0.0
            if wait and self.core.has_work and not self.sleeping.tags:
                self._step()
                patience = self.core.patience
            ended, self._ended = self._ended, []  # after the step, which may raise
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
        """Run a function while no step runs."""
        with self._between_steps():
            return call()

    def ask(self, question: CoreQuestion[A]) -> A:
        """Answer a question, between two steps if it requires that."""
        with self._between_steps() if question.waits else nullcontext():
            return question.answer(self)

    def counts(self) -> Counts:
        """The core's counts, with its sleep level."""
        return self.sleeping.noted(self.core.counts())

    def deliver(self, deltas: Sequence[TokenDelta]) -> None:
        """Add these deltas to what the next `outputs` returns."""
        self._ended += deltas

    def take_blocks(self) -> None:
        """Drain steps in flight and preempt all requests, which frees every block."""
        self.deliver(self.core.drain())
        emptied = self.core.reset_prefix_cache(reset_running_requests=True)
        assert emptied, "no request has blocks once all are preempted"

    def ring(self) -> None:
        """Interrupt a wait in `outputs`."""
        self._bell.ring()

    @property
    def weights_version(self) -> int:
        return self.core.weights_version

    def update_weights(self, values: Any) -> int:
        with self._between_steps():
            version = self.core.update_weights(values)
            self.sleeping.note_weights()
            return version

    def state(self) -> CoreState:
        """Current counts, or while a step runs those of the last step."""
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
        return self.core.is_compiling

    def _count_if_free(self) -> None:
        if self._stepping.acquire(blocking=False):
            try:
                self._count()
            finally:
                self._stepping.release()

    def dump_stacks(self) -> None:
        """No-op: there are no child processes."""

    def when_dead(self, tell: Callable[[EngineDead], None]) -> None:
        """No-op: the engine dies inside `outputs` or a user's call, which raises."""

    def check_alive(self) -> None:
        self._own.check()
        self.core.check_alive()

    def shutdown(self) -> None:
        """Abort everything and free device memory; a no-op in a forked child, whose devices and
        locks are the parent's."""
        if self._own.is_here:
            with self._alone():
                self._queue.clear()
                self._ended.clear()
                self.core.shutdown()

    def wait_for_step(self, seconds: float) -> None:
        if self._own.is_here and self._stepping.acquire(timeout=seconds):
            self._stepping.release()

    @contextmanager
    def _between_steps(self) -> Iterator[None]:
        """Hold the core exclusively, with the queue consumed."""
        self._own.check()
        with self._alone():
            self._take_up()
            yield

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Exclusive access to the core in FIFO order. With a plain lock the stepping thread would
        reacquire it every time."""
        try:
            with self._next:
                self._stepping.acquire()
            check_not_ending()
            yield
        finally:
            # RuntimeError: an interrupt came before this thread had the lock.
            with suppress(RuntimeError):
                self._stepping.release()

    def _take_up(self) -> None:
        """Pass queued requests and aborts to the core, including those queued meanwhile."""
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
    """The single, final delta of a refused request."""
    return TokenDelta(
        request_id=wire.request_id,
        token_ids=[],
        finish_reason="error",
        message=str(error),
        refused=True,
    )


class Bell:
    """An event for one waiter. `ring` is reentrant, by way of SimpleQueue: a finalizer may call it
    inside any other method."""

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        """Wake the waiter, or prevent the next wait."""
        self._rings.put(None)

    def hush(self) -> None:
        """Clear earlier rings; their causes are handled from here on."""
        with suppress(Empty):
            while True:
                self._rings.get_nowait()

    def wait(self, seconds: float) -> None:
        """Return when rung since `hush`, or after `seconds`."""
        with suppress(Empty):
            self._rings.get(timeout=seconds)
