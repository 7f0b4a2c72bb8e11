"""Serves fronts from the core's process.

Besides the stepping thread, one thread owns the socket, one encodes messages (`message_outbox`),
and some answer questions between steps, so no step waits for a socket. Must not know how the engine
was built, or who started this process.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import msgspec
import zmq

from jengine.engine.client import EngineClient
from jengine.engine.core_state import CoreState
from jengine.engine.in_process import refused
from jengine.engine.process.fronts import Fronts
from jengine.engine.process.message_outbox import Outbox
from jengine.engine.process.step_loop import StepLoop
from jengine.engine.process.to_core import (
    AbortRequest,
    AddRequest,
    Ask,
    FromFront,
    Hello,
    Leave,
    Shutdown,
    TellTokenizer,
    decode_from_front,
)
from jengine.engine.process.to_front import (
    CoreAnswer,
    CoreRefusal,
    Dead,
    Failure,
    LogRecord,
    NotReady,
    Progress,
    Ready,
)
from jengine.engine.questions import AskHealth, CoreQuestion
from jengine.errors import EngineDead, RequestError
from jengine.grammar.shared_tokenizer import SharedTokenizer
from jengine.kvcache.content_journal import ContentJournal
from jengine.request import WireRequest
from jengine.wire.doors import Door
from jengine.wire.message import BadFrame, Message
from jengine.wire.socket_loop import Parts, SocketLoop

# Threads for questions, so that one that waits for a long step does not block the others.
ASKERS = 4
# Seconds that a core whose startup failed waits for a front to report it to.
FIRST_FRONT = 5.0


class Served(NamedTuple):
    """A core that is ready to serve."""

    client: EngineClient
    ready: Ready
    journal: ContentJournal | None  # changes of its cache, if fronts want them


class CoreServer:
    """Accepts fronts from its construction on; `serve` runs the engine's steps for them."""

    def __init__(self, address: str, door: Door | None = None) -> None:
        """Fronts of this host connect to `address`, those of other hosts to `door`."""
        self.tokenizer = SharedTokenizer()
        self.dropped = 0  # frames that could not be read, or came from no known front
        self._fronts = Fronts()
        self._steps: StepLoop | None = None  # once the engine has been built
        self._client: EngineClient | None = None
        self._ended = threading.Event()  # told to shut down, or a thread of this server failed
        self._failure: BaseException | None = None  # of such a thread
        self._askers = ThreadPoolExecutor(ASKERS, "jengine-ask")
        self._health = ThreadPoolExecutor(1, "jengine-health")
        self._socket = SocketLoop(
            zmq.ROUTER, *filter(None, (Door(address), door)),
            receive=self._receive, failed=self._fail, unreachable=self._forget,
        )  # fmt: skip
        self._outbox = Outbox(self._fronts, self._socket.send, self._current, self._fail)
        self._outbox.start()
        self._socket.start()

    def report(self, progress: Progress) -> None:
        """Send startup progress to the fronts."""
        self._outbox.announce(progress)

    def log(self, record: LogRecord) -> None:
        """Send a log record to fronts that want it."""
        self._outbox.log(record)

    def refuse(self, error: BaseException) -> None:
        """Tell the fronts why startup failed, and close."""
        self._outbox.greeted.wait(FIRST_FRONT)
        self._outbox.announce(NotReady(Failure.of(error)))
        self._close()

    def end_with(self, reason: str) -> None:
        """Tell the fronts why this process is ending, and close. Thread-safe."""
        error = EngineDead(reason)
        if self._steps is None:
            self.refuse(error)
        else:
            self._outbox.announce(Dead(Failure.of(error)))
            self._close()

    def serve(self, served: Served) -> None:
        """Run steps in this thread until a front shuts the core down or a step fails for good."""
        client, ready, journal = served
        _, *doors = self._socket.addresses
        ready = msgspec.structs.replace(ready, door=doors[0] if doors else None)
        outbox = self._outbox
        steps = StepLoop(
            client, outbox.deliver, outbox.step_failed, partial(outbox.tell_changes, journal)
        )
        self._client, self._steps = client, steps
        outbox.announce(ready)
        try:
            steps.run(self._ended)
            if self._failure is not None:
                raise self._failure
        except BaseException as error:
            outbox.announce(Dead(Failure.of(error)))
            raise
        else:
            outbox.announce(Dead(Failure.of(EngineDead("the engine was shut down."))))
        finally:
            self._close()

    def _close(self) -> None:
        """Flush queued messages and end the threads, except those waiting for a step."""
        self._outbox.close()
        self._socket.close()
        self._askers.shutdown(wait=False, cancel_futures=True)
        self._health.shutdown(wait=False, cancel_futures=True)

    def _fail(self, error: BaseException) -> None:
        """Stop the core because one of its threads failed."""
        traceback.print_exception(error)
        self._failure = error
        self._end()

    def _end(self) -> None:
        self._ended.set()
        self._wake()

    def _wake(self) -> None:
        if self._steps is not None:
            self._steps.wake()

    def _current(self) -> CoreState | None:
        return None if self._steps is None else self._steps.state(self.dropped)

    # --- the thread of the socket ----------------------------------------------------------------

    def _receive(self, parts: Parts) -> None:
        identity = parts[0]
        try:
            if len(parts) != 2:
                raise BadFrame(f"a message of {len(parts) - 1} parts: expected one")
            message = decode_from_front(parts[1])
            if not isinstance(message, Hello) and identity not in self._fronts:
                raise BadFrame(f"{type(message).__name__} before Hello")
            self._take(identity, message)
        except BadFrame:
            self.dropped += 1

    def _take(self, identity: bytes, message: FromFront) -> None:
        match message:
            case Hello(takes_logs, takes_contents):
                self._fronts.enter(identity, takes_logs=takes_logs, takes_contents=takes_contents)
                self._outbox.greet(identity)
            case TellTokenizer(tokenizer):
                self.tokenizer.tell(tokenizer)
            case AddRequest(wire):
                self._add(identity, wire)
            case AbortRequest(request_id):
                self._abort(filter(None, [self._fronts.name_of(identity, request_id)]))
            case Ask():
                about_health = isinstance(message.question, AskHealth)
                threads = self._health if about_health else self._askers
                threads.submit(self._answer, identity, message)
            case Leave():
                self._forget(identity)
            case Shutdown():
                self._end()

    def _add(self, identity: bytes, wire: WireRequest) -> None:
        if self._client is None:
            raise BadFrame("a request before the engine was ready")
        named = self._fronts.take(identity, wire)
        if named is None:
            raise BadFrame(f"a second request {wire.request_id[:40]!r} before the first has ended")
        try:
            self._client.add(named)
        except RequestError as error:  # the front checks by the same rules
            self._outbox.deliver([refused(named, error)])
        except EngineDead:
            return  # all fronts are told
        self._wake()

    def _abort(self, names: Iterable[str]) -> None:
        for name in names:
            assert self._client is not None, "there are no requests before there is an engine"
            self._client.abort(name)
        self._wake()

    def _forget(self, identity: bytes) -> None:
        """Abort the requests of a front that left or is unreachable."""
        self._abort(self._fronts.leave(identity))

    # --- the threads for questions ---------------------------------------------------------------

    def _answer(self, identity: bytes, ask: Ask) -> None:
        try:
            reply: Message = CoreAnswer(ask.number, self._answered(ask))
        except Exception as error:  # noqa: BLE001 - the front raises it
            reply = CoreRefusal(ask.number, Failure.of(error))
        self._outbox.reply(identity, reply)
        self._wake()  # the question has passed queued requests to the scheduler

    def _answered(self, ask: Ask) -> bytes:
        if self._steps is None:
            raise EngineDead("the engine is not ready yet.")
        question: CoreQuestion[Any] = ask.question
        return msgspec.msgpack.encode(self._steps.ask(question))
