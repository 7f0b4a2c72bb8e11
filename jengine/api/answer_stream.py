"""The output stream of one request for asyncio programs. No jax.

In: a function that submits the request. Out: outputs as they grow. Closing, dropping or cancelling
a stream aborts its request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from jengine.engine.answer import Answer
from jengine.outputs import RequestOutput

if TYPE_CHECKING:
    from jengine.api.async_requests import AsyncRequests


class StreamReader:
    """The asyncio side of one stream: its loop, the event set when output is ready, and the arrival
    time of its request."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.event = asyncio.Event()
        self.arrival = time.monotonic()


Submit = Callable[[StreamReader], Answer]
# Slow work, such as compiling a grammar, that runs in a thread of its own before `Submit`, which
# runs on the shared input thread.
Prepare = Callable[[], object]


def wake(answers: Iterable[Answer]) -> None:
    """Wake the readers of answers with new output."""
    for answer in answers:
        answer.reader.event.set()


class AnswerStream(AsyncGenerator[RequestOutput, None]):
    """The outputs of one request as they grow. The request is submitted at the first read.

    Dropping or closing the stream, or cancelling its reader, aborts the request at once: an async
    generator would wait until its event loop runs its finalizer.
    """

    def __init__(
        self, requests: AsyncRequests, submit: Submit, prepare: Prepare | None = None
    ) -> None:
        self._requests = requests
        self._submit: Submit | None = submit
        self._prepare = prepare
        self._answer: Answer | None = None

    async def asend(self, _value: None) -> RequestOutput:
        """The next output; StopAsyncIteration after the last one."""
        if self._submit is not None:
            submit, self._submit = self._submit, None
            self._answer = await self._entered(submit)
        if self._answer is None:
            raise StopAsyncIteration
        try:
            while (output := self._answer.take()) is None:
                event = self._answer.reader.event
                event.clear()
                await event.wait()
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
        reader = StreamReader()
        if self._prepare is not None:
            await asyncio.to_thread(self._prepare)
        entering = self._requests.enter(submit, reader)
        try:
            return await asyncio.wrap_future(entering)
        except BaseException:
            entering.add_done_callback(self._forget)
            raise

    def _forget(self, entered: Future[Answer]) -> None:
        """Abort a request whose reader was cancelled while it was being submitted."""
        if not entered.cancelled() and entered.exception() is None:
            self._requests.discard(entered.result())

    def _leave(self) -> None:
        self._submit = None
        answer, self._answer = self._answer, None
        if answer is not None:
            self._requests.discard(answer)
