"""Batches of requests over one session: submitted together, answered step by step. No jax.

In: prompts with their parameters. Out: the outputs of each batch. Several threads may run batches
of one session: one runs each step for all, and the others wait for it.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable

from jengine.api.arguments import RequestArguments
from jengine.api.async_requests import PauseMode
from jengine.api.interrupt import held_back_interrupts
from jengine.engine.answer import Answer
from jengine.engine.questions import Pause, Resume
from jengine.engine.session import Session
from jengine.errors import EngineAsleep, RequestError
from jengine.outputs import RequestOutput


class RequestBatch:
    """Requests submitted together, and the queue of those with unread output."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.arrived: deque[Answer] = deque()

    @property
    def ids(self) -> list[str]:
        return [answer.request_id for answer in self.answers]


class RequestBatches:
    """All batches of one session. They may run in turn, or concurrently in several threads."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.paused = False  # no steps run; waiting threads go on waiting
        self._stepping = threading.Lock()
        self._stepper = 0  # the thread running a step; 0: none
        self._paused_by = 0  # the thread that paused last
        self._stepped = threading.Condition()

    def submit(
        self,
        batch: RequestBatch,
        asked: Iterable[RequestArguments],
        note_progress: Callable[[], object] = lambda: None,
    ) -> None:
        """Tokenize, validate and queue prompts one by one. If one fails, none stays queued."""
        try:
            for one in asked:
                with held_back_interrupts():  # else Ctrl-C could keep a request out of the batch
                    answer = self.session.submit(
                        one.prompt, one.params, priority=one.priority, taps=one.taps,
                        lora_request=one.lora_request, reader=batch,
                    )  # fmt: skip
                    batch.answers.append(answer)
                note_progress()
        except BaseException:
            self.discard(batch)
            raise

    def run(self, batch: RequestBatch) -> Generator[RequestOutput]:
        """Yield outputs until the batch is answered; leaving the loop aborts the rest."""
        pending = set(batch.answers)
        try:
            while pending:
                if not batch.arrived:
                    self._wait_for(batch)
                    continue
                answer = batch.arrived.popleft()
                output = answer.take()
                if output is None:
                    continue  # its output was taken with an earlier one
                if output.finished:
                    pending.discard(answer)
                yield output
        finally:
            for answer in pending:
                self.session.discard(answer)

    def stream(self, batch: RequestBatch) -> Generator[RequestOutput]:
        """`run` for a caller that may never start to read."""
        outputs = self.run(batch)
        # A generator that was never started does not run its `finally`.
        weakref.finalize(outputs, self.discard, batch).atexit = False  # pyrefly: ignore
        return outputs

    def step(self, batch: RequestBatch) -> None:
        """Run one step, unless the batch has unread output or there is no work."""
        self.check_running()
        if not batch.arrived and self.session.has_work:
            self._wait_for(batch)

    def finish_all(self) -> None:
        """Run steps until every open request has ended, unless steps are paused. Outputs stay
        unread."""
        for answer in self.session.open_answers:
            while answer.is_open and not self.paused:
                self._step_or_wait(lambda answer=answer: not answer.is_open or self.paused)

    def pause(self, mode: PauseMode) -> None:
        """Run no more steps; open requests are aborted, finished first, or kept for the resume."""
        if mode == "keep":
            self._stop_steps()
            return
        with self.session.closed_to_new():
            for answer in self.session.open_answers if mode == "abort" else ():
                self.session.abort(answer.request_id)
            self.finish_all()
            self._stop_steps()

    def _check_outside_step(self) -> None:
        """Raise RequestError in a thread that runs a step, which would wait for itself."""
        if self._stepper == threading.get_ident():
            raise RequestError(
                "this was called while a step runs, by a logits processor or another callback of "
                "the same engine: it would wait for itself. Call it from another thread."
            )

    def _stop_steps(self) -> None:
        self._check_outside_step()
        with self._stepping:
            self.session.client.ask(Pause())  # a core in another process would go on
            self._paused_by = threading.get_ident()
            self.paused = True

    def resume(self) -> None:
        """Resume steps."""
        if self.paused:
            self.session.client.ask(Resume())
        with self._stepped:
            self.paused = False
            self._stepped.notify_all()

    def check_running(self) -> None:
        """Raise EngineAsleep while paused, when a caller would wait for another thread's
        wake-up."""
        if self.paused:
            raise EngineAsleep(
                "this engine was put to sleep. Call wake_up() first; enqueue() takes prompts for "
                "afterwards."
            )

    def discard(self, batch: RequestBatch) -> None:
        """Abort the requests of a batch that is not read any further."""
        for answer in batch.answers:
            self.session.discard(answer)

    def _wait_for(self, batch: RequestBatch) -> None:
        """Return when the batch has unread output or a step has been run."""
        self._step_or_wait(lambda: bool(batch.arrived))

    def _step_or_wait(self, done: Callable[[], bool]) -> None:
        """Run a step, or wait for the end of another thread's."""
        self._check_outside_step()
        if self._paused_by == threading.get_ident():
            self.check_running()  # it would wait for its own wake-up
        with held_back_interrupts():  # inside, Ctrl-C could leave the lock behind
            stepped = self._try_step(done)
        if not stepped:
            with self._stepped:
                self._stepped.wait_for(
                    lambda: done() or not (self.paused or self._stepping.locked())
                )

    def _try_step(self, done: Callable[[], bool]) -> bool:
        """Run a step if still needed. Returns False if another thread runs one."""
        if self.paused or not self._stepping.acquire(blocking=False):
            return False
        try:
            if not (self.paused or done()):
                self._stepper = threading.get_ident()
                self.session.client.check_alive()
                assert self.session.has_work, "a caller waits for requests that the engine lost"
                for answer in self.session.step():
                    answer.reader.arrived.append(answer)
        finally:
            self._stepper = 0
            self._stepping.release()
            with self._stepped:
                self._stepped.notify_all()
        return True
