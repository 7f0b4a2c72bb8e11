"""Requests of asyncio programs over one session. No jax.

Three threads, so that none blocks another: one tokenizes and queues requests, one runs steps while
there is work, one detokenizes. If steps run in another process, the thread that receives from it
also detokenizes, since each thread on a token's path adds a wait for the GIL and for a CPU core.
The event loop only takes finished outputs.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal

from jengine.api.answer_stream import AnswerStream, Prepare, StreamReader, Submit, wake
from jengine.engine.answer import Answer
from jengine.engine.in_process import InProcessClient
from jengine.engine.questions import Pause, Resume, Settle
from jengine.engine.session import Session
from jengine.errors import EngineDead

# What a pause does with open requests: abort them, finish them, or keep them.
PauseMode = Literal["abort", "wait", "keep"]


class AsyncRequests:
    """Runs a session for any number of event loops."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._input = ThreadPoolExecutor(1, "jengine-input")
        self._steps = ThreadPoolExecutor(1, "jengine-step")
        self._output = ThreadPoolExecutor(1, "jengine-output")
        self._runs_steps = isinstance(session.client, InProcessClient)
        self._guard = threading.Condition()  # guards the next two; notified when steps have ended
        self._stepping = False
        self._paused = False
        self._ending = False  # a shutdown does not wait for requests
        self._progress = threading.Condition()  # notified when outputs were made
        session.client.when_dead(self._died)

    def stream(self, submit: Submit, prepare: Prepare | None = None) -> AnswerStream:
        """The outputs of the request that `submit` makes; submitted at the first read."""
        return AnswerStream(self, submit, prepare)

    def enter(self, submit: Submit, reader: StreamReader) -> Future[Answer]:
        """Tokenize and queue a request on the input thread; steps run until it is answered."""

        def work() -> Answer:
            answer = submit(reader)
            self.run_steps()
            return answer

        try:
            return self._input.submit(work)
        except RuntimeError as error:  # the thread pools are shut down
            raise EngineDead("this AsyncLLM was shut down. Create a new one.") from error

    def run_steps(self) -> None:
        """Have the step thread run until there is no more work, unless generation is paused."""
        with self._guard:
            if not self._stepping and not self._paused and self._session.has_work:
                self._stepping = True
                self._steps.submit(self._run_steps)

    def discard(self, answer: Answer) -> None:
        """Abort a request whose stream was closed."""
        self._session.discard(answer)

    def abort(self, request_id: str) -> None:
        """Abort a request, and return when the scheduler has done so; its reader gets a last
        output."""
        self._session.abort(request_id)
        self._session.client.ask(Settle())
        self.run_steps()

    def finish_all(self) -> None:
        """Return when every currently open request has ended, or at a pause or shutdown."""
        for answer in self._session.open_answers:
            with self._progress:
                self._progress.wait_for(
                    lambda answer=answer: self._paused or self._ending or not answer.is_open
                )

    @property
    def paused(self) -> bool:
        """Whether no steps run until `resume`."""
        return self._paused

    def pause(self, mode: PauseMode, refusal: str | None = None) -> None:
        """Run no more steps; returns when the last one has ended and its outputs can be read.

        New requests, also while open ones are waited for, are queued, or refused with this reason.
        """
        if mode == "keep":
            self._stop_steps(refusal)
            return
        with self._session.closed_to_new():
            if mode == "abort":
                for answer in self._session.open_answers:
                    self._session.abort(answer.request_id)
            self.resume()  # if paused with requests kept: these end or finish now
            self.finish_all()
            self._stop_steps(refusal)

    def resume(self) -> None:
        """Let steps run again."""
        if self._paused:
            self._session.client.ask(Resume())
        self._session.refuse_new(None)
        with self._guard:
            self._paused = False
        self.run_steps()

    def _stop_steps(self, refusal: str | None) -> None:
        self._session.client.ask(Pause())
        self._session.refuse_new(refusal)
        with self._guard:
            self._paused = True
            self._guard.wait_for(lambda: not self._stepping)
        self._session.receive_rest()
        self._output.submit(self._make_outputs)
        with self._progress:
            self._progress.notify_all()
        self._output.submit(lambda: None).result()  # after the outputs of the last step

    def shutdown(self) -> None:
        """Fail every request with EngineDead, and end the engine and the threads."""
        with self._progress:
            self._ending = True
            self._progress.notify_all()
        with self._session.closed_to_new():
            self._session.client.shutdown()
            self._tell(self._session.fail_all(EngineDead("the engine was shut down.")))
        self._session.close()
        for threads in (self._input, self._steps, self._output):
            threads.shutdown()

    def _run_steps(self) -> None:
        while True:
            try:
                self._session.receive()
            except Exception as error:  # noqa: BLE001 - every reader gets it
                self._tell(self._session.fail_all(error))
                dead = isinstance(error, EngineDead)
            else:
                if self._runs_steps:
                    self._output.submit(self._make_outputs)
                else:
                    self._make_outputs()
                dead = False
            with self._guard:
                if dead or self._paused or not self._session.has_work:
                    self._stepping = False
                    self._guard.notify_all()
                    return

    def _died(self, error: EngineDead) -> None:
        """Fail all requests: called by the watcher of an engine in another process."""
        self._tell(self._session.fail_all(error))

    def _make_outputs(self) -> None:
        try:
            news = self._session.process()
        except Exception as error:  # noqa: BLE001 - every reader gets it
            news = self._session.fail_all(error)
        self._tell(news)

    def _tell(self, news: Iterable[Answer]) -> None:
        """Wake the readers of these answers: one call into each event loop."""
        with self._progress:
            self._progress.notify_all()
        by_loop: dict[asyncio.AbstractEventLoop, list[Answer]] = defaultdict(list)
        for answer in news:
            by_loop[answer.reader.loop].append(answer)
        for loop, answers in by_loop.items():
            try:
                loop.call_soon_threadsafe(wake, answers)
            except RuntimeError:  # the loop is closed, and its readers with it
                for answer in answers:
                    self._session.discard(answer)
