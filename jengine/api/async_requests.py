"""Requests of asyncio programs over one session. No jax.

Three threads, so that none holds up another: one tokenizes and queues, one runs the engine's steps
while there is work, one turns tokens into text. The event loop only takes what is ready.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from jengine.engine.answer import Answer
from jengine.engine.session import Session
from jengine.errors import EngineDead
from jengine.outputs import RequestOutput


class Reader:
    """A stream's wait for something new, in its own event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.event = asyncio.Event()


Submit = Callable[[Reader], Answer]


class AsyncRequests:
    """Runs a session for any number of event loops."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._input = ThreadPoolExecutor(1, "jengine-input")
        self._steps = ThreadPoolExecutor(1, "jengine-step")
        self._output = ThreadPoolExecutor(1, "jengine-output")
        self._guard = threading.Lock()  # around `_stepping`
        self._stepping = False
        self._progress = threading.Condition()  # notified when outputs were made

    def stream(self, submit: Submit) -> AnswerStream:
        """The outputs of the request that `submit` makes, once somebody begins to read them."""
        return AnswerStream(self, submit)

    def enter(self, submit: Submit, reader: Reader) -> Future[Answer]:
        """Make a request on the input thread, and have steps run until it is answered."""

        def work() -> Answer:
            answer = submit(reader)
            self.run_steps()
            return answer

        try:
            return self._input.submit(work)
        except RuntimeError as error:  # the threads have ended
            raise EngineDead("this AsyncLLM was shut down. Create a new one.") from error

    def run_steps(self) -> None:
        """Have the step thread run until there is no more work."""
        with self._guard:
            if not self._stepping and self._session.has_work:
                self._stepping = True
                self._steps.submit(self._run_steps)

    def discard(self, answer: Answer) -> None:
        """End a request without a reader."""
        self._session.discard(answer)

    def abort(self, request_id: str) -> None:
        """End a request and return when the scheduler knows; its reader gets a last output."""
        self._session.abort(request_id)
        self._session.client.settle()
        self.run_steps()

    def finish_all(self) -> None:
        """Return when every request that is open now has ended."""
        for answer in self._session.open_answers:
            with self._progress:
                self._progress.wait_for(lambda answer=answer: answer.finished)

    def shutdown(self) -> None:
        """End every request with an EngineDead for its reader, the engine, and the threads."""
        with self._session.closed_to_new():
            self._session.client.shutdown()
            self._tell(self._session.fail_all(EngineDead("the engine was shut down.")))
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
                self._output.submit(self._make_outputs)
                dead = False
            with self._guard:
                if dead or not self._session.has_work:
                    self._stepping = False
                    return

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


def wake(answers: Iterable[Answer]) -> None:
    """Let readers take what is new."""
    for answer in answers:
        answer.reader.event.set()


class AnswerStream(AsyncGenerator[RequestOutput, None]):
    """The outputs of one request as they grow. The request is made when the first is asked for.

    Letting go of the stream, closing it, or cancelling who reads it ends the request at once: an
    async generator would do so only when its event loop comes to it.
    """

    def __init__(self, requests: AsyncRequests, submit: Submit) -> None:
        self._requests = requests
        self._submit: Submit | None = submit
        self._answer: Answer | None = None

    async def asend(self, _value: None) -> RequestOutput:
        """The next output; StopAsyncIteration after the last one."""
        if self._submit is not None:
            submit, self._submit = self._submit, None
            self._answer = await self._entered(submit)
        if self._answer is None:
            raise StopAsyncIteration
        try:
            output = await self._next(self._answer)
        except BaseException:
            self._leave()
            raise
        if output.finished:
            self._answer = None
        return output

    async def athrow(self, typ: Any, val: Any = None, tb: Any = None) -> RequestOutput:
        """End the request and raise."""
        self._leave()
        error = typ() if val is None and isinstance(typ, type) else val or typ
        raise error.with_traceback(tb)

    async def aclose(self) -> None:
        """End the request."""
        self._leave()

    def __del__(self) -> None:
        self._leave()

    async def _entered(self, submit: Submit) -> Answer:
        entering = self._requests.enter(submit, Reader())
        try:
            return await asyncio.wrap_future(entering)
        except BaseException:
            entering.add_done_callback(self._forget)
            raise

    def _forget(self, entered: Future[Answer]) -> None:
        """End a request whose reader left while it was being made."""
        if not entered.cancelled() and entered.exception() is None:
            self._requests.discard(entered.result())

    @staticmethod
    async def _next(answer: Answer) -> RequestOutput:
        event = answer.reader.event
        while (output := answer.take()) is None:
            event.clear()
            await event.wait()
        return output

    def _leave(self) -> None:
        self._submit = None
        answer, self._answer = self._answer, None
        if answer is not None:
            self._requests.discard(answer)
