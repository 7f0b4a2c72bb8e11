"""The core's end: serves any number of fronts from the process that runs the steps.

Besides the thread that runs steps, one thread owns the socket, one encodes what goes to the fronts,
and some answer questions between steps. So a step waits for no socket. Must not know how the engine
was built, or who started this process.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import msgspec
import zmq

from jengine.engine.client import EngineClient, refused
from jengine.engine.process.fronts import Fronts
from jengine.engine.process.messages import (
    AbortRequest,
    AddRequest,
    Answer,
    Ask,
    AskHealth,
    BadFrame,
    CacheChanges,
    Dead,
    Failure,
    FromFront,
    Hello,
    Leave,
    LogRecord,
    Message,
    NotReady,
    Outputs,
    Progress,
    Pulse,
    Ready,
    Refusal,
    Shutdown,
    StepFailed,
    decode_from_front,
    encode,
)
from jengine.engine.process.network import Door
from jengine.engine.process.questions import answer
from jengine.engine.process.socket_loop import Parts, SocketLoop
from jengine.engine.process.step_loop import StepLoop
from jengine.errors import EngineDead, JengineError, RequestError
from jengine.kvcache.content_journal import ContentJournal, HeldContents
from jengine.outputs import TokenDelta
from jengine.request import WireRequest

# Seconds between two reports of the core's state: while steps end, and while none do.
REPORT = 0.1
QUIET_REPORT = 0.5
# Threads for questions, so that one that waits for a long step does not hold up all others.
ASKERS = 4
# Lines of the log that are kept until the first front comes.
EARLY_LOG = 1000
# Blocks in one message to a front that comes when the cache holds many.
MOST_CHANGES = 100_000
# Seconds that a core which cannot start waits for a front to say so to.
FIRST_FRONT = 5.0


class Served(NamedTuple):
    """A core that is ready."""

    client: EngineClient
    ready: Ready
    journal: ContentJournal | None  # of its cache, if the fronts are to be told


class CoreServer:
    """Talks to fronts from its construction on; `serve` runs the steps of an engine for them."""

    def __init__(self, address: str, door: Door | None = None) -> None:
        """Fronts of this host come to the address, those of other hosts to the door."""
        self.dropped = 0  # frames that could not be read, or came from no known front
        self._fronts = Fronts()
        self._news: Message = Progress("Starting")  # for fronts that come
        self._early_log: deque[LogRecord] = deque(maxlen=EARLY_LOG)  # before a front took it
        self._held = HeldContents()  # of the cache, as far as fronts were told
        self._steps: StepLoop | None = None  # once the engine has been built
        self._client: EngineClient | None = None
        self._greeted = threading.Event()  # a front has come
        self._ended = threading.Event()  # told to shut down, or a thread of this server failed
        self._failure: BaseException | None = None  # of such a thread
        self._reported = (0.0, 0)  # when the state was sent, and the steps that had ended
        self._outbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._askers = ThreadPoolExecutor(ASKERS, "jengine-ask")
        self._health = ThreadPoolExecutor(1, "jengine-health")
        self._socket = SocketLoop(
            zmq.ROUTER, address,
            receive=self._receive, failed=self._fail, unreachable=self._forget, door=door,
        )  # fmt: skip
        self._output = threading.Thread(target=self._write, name="jengine-output", daemon=True)
        self._output.start()
        self._socket.start()

    def report(self, progress: Progress) -> None:
        """Tell the fronts what is being done before the engine is ready."""
        self._announce(progress)

    def log(self, record: LogRecord) -> None:
        """Give a line of the log to the fronts that take it."""
        self._outbox.put(partial(self._send_log, record))

    def refuse(self, error: BaseException) -> None:
        """Tell the fronts why there is no engine, and close."""
        self._greeted.wait(FIRST_FRONT)
        self._announce(NotReady(Failure.of(error)))
        self._close()

    def serve(self, served: Served) -> None:
        """Run steps in this thread until a front ends the core, or a step fails for good."""
        client, ready, journal = served
        ready = msgspec.structs.replace(ready, door=self._socket.door_address)
        steps = StepLoop(client, self._deliver, self._step_failed, partial(self._tell, journal))
        self._client, self._steps = client, steps
        self._announce(ready)
        try:
            steps.run(self._ended)
            if self._failure is not None:
                raise self._failure
        except BaseException as error:
            self._announce(Dead(Failure.of(error)))
            raise
        else:
            self._announce(Dead(Failure.of(EngineDead("the engine was shut down."))))
        finally:
            self._close()

    def _close(self) -> None:
        """Send what is queued, and end the threads but for those that wait for a step."""
        self._outbox.put(None)
        self._output.join()
        self._socket.close()
        self._askers.shutdown(wait=False, cancel_futures=True)
        self._health.shutdown(wait=False, cancel_futures=True)

    def _fail(self, error: BaseException) -> None:
        """One of the threads below has failed: end the core."""
        traceback.print_exception(error)
        self._failure = error
        self._end()

    def _end(self) -> None:
        self._ended.set()
        self._wake()

    def _wake(self) -> None:
        if self._steps is not None:
            self._steps.wake()

    # --- the thread that writes to fronts ------------------------------------------------------

    def _write(self) -> None:
        try:
            while True:
                try:
                    job = self._outbox.get(timeout=max(self._report_due(), 0.0))
                except queue.Empty:
                    job = self._send_state
                if job is None:
                    return
                job()
                if self._report_due() <= 0:
                    self._send_state()
        except Exception as error:  # noqa: BLE001 - the thread that runs steps raises it
            self._fail(error)

    def _announce(self, news: Message) -> None:
        """Tell all fronts, and those that come: each of them is greeted on the same thread."""

        def tell() -> None:
            self._news = news
            self._send(self._fronts.identities, news)

        self._outbox.put(tell)

    def _deliver(self, deltas: list[TokenDelta]) -> None:
        self._outbox.put(partial(self._send_deltas, deltas))

    def _tell(self, journal: ContentJournal | None) -> None:
        if journal is not None and (changes := journal.take()):
            self._outbox.put(partial(self._send_changes, changes))

    def _step_failed(self, error: JengineError) -> None:
        failed = StepFailed(Failure.of(error))
        self._outbox.put(lambda: self._send(self._fronts.identities, failed))

    def _send_changes(self, changes: list[bytes]) -> None:
        self._held.note(changes)
        self._send(self._fronts.content_takers, CacheChanges(changes))

    def _greet(self, identity: bytes) -> None:
        self._send([identity], self._news)
        if identity in self._fronts.content_takers:  # it may have come late
            for changes in self._held.as_changes(MOST_CHANGES):
                self._send([identity], CacheChanges(changes))
        self._greeted.set()
        while self._early_log and self._fronts.log_takers:
            self._send(self._fronts.log_takers, self._early_log.popleft())

    def _send_log(self, record: LogRecord) -> None:
        takers = self._fronts.log_takers
        if not takers:
            self._early_log.append(record)
        self._send(takers, record)

    def _send_deltas(self, deltas: list[TokenDelta]) -> None:
        for identity, own in self._fronts.sorted(deltas).items():
            self._send([identity], Outputs(own))

    def _send_state(self) -> None:
        state = None if self._steps is None else self._steps.state(self.dropped)
        self._reported = (time.monotonic(), 0 if state is None else state.steps)
        if state is not None:
            self._send(self._fronts.identities, Pulse(state))

    def _report_due(self) -> float:
        """Seconds until the state is to be sent."""
        when, steps = self._reported
        moved = self._steps is not None and self._steps.state().steps != steps
        return when + (REPORT if moved else QUIET_REPORT) - time.monotonic()

    def _send(self, identities: Iterable[bytes], message: Message) -> None:
        data = encode(message)
        for identity in identities:
            self._socket.send([identity, data])

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
                self._outbox.put(partial(self._greet, identity))
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
            self._deliver([refused(named, error)])
        except EngineDead:
            return  # all fronts are told
        self._wake()

    def _abort(self, names: Iterable[str]) -> None:
        for name in names:
            assert self._client is not None, "there are no requests before there is an engine"
            self._client.abort(name)
        self._wake()

    def _forget(self, identity: bytes) -> None:
        """A front has left, or cannot be reached: nobody reads its answers."""
        self._abort(self._fronts.leave(identity))

    # --- the threads for questions ---------------------------------------------------------------

    def _answer(self, identity: bytes, ask: Ask) -> None:
        try:
            reply: Message = Answer(ask.number, self._answered(ask))
        except Exception as error:  # noqa: BLE001 - the front raises it
            reply = Refusal(ask.number, Failure.of(error))
        self._outbox.put(lambda: self._send([identity], reply))
        self._wake()  # what was queued before the question has been taken up

    def _answered(self, ask: Ask) -> bytes:
        if self._client is None or self._steps is None:
            raise EngineDead("the engine is not ready yet.")
        return answer(ask.question, self._client, self._steps)
