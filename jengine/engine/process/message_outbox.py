"""Encodes and sends a core's messages to fronts on a separate thread, so that no step waits.

In: announcements, deltas and answers, from any thread. Out: messages to their fronts. Must not know
sockets.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from jengine.engine.core_state import CoreState
from jengine.engine.process.fronts import Fronts
from jengine.engine.process.to_front import (
    CacheChanges,
    Failure,
    LogRecord,
    Outputs,
    Progress,
    Pulse,
    StepFailed,
)
from jengine.errors import JengineError
from jengine.kvcache.content_journal import ContentJournal, HeldContents
from jengine.outputs import TokenDelta
from jengine.wire.message import Message, encode

# Seconds between reports of the core's state, while steps end and while none does.
REPORT = 0.1
QUIET_REPORT = 0.5
# Log records kept until a front that takes logs connects.
EARLY_LOG = 1000
# Block changes per message to a front that connects when the cache is filled.
MOST_CHANGES = 100_000


class Outbox:
    """The sending thread and its queue."""

    def __init__(
        self,
        fronts: Fronts,
        send: Callable[[list[bytes]], None],
        state: Callable[[], CoreState | None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """`send` takes an identity and a message; `state` returns the core's state once there is
        one; `failed` is called if the thread fails."""
        self.greeted = threading.Event()  # a front has connected
        self._fronts = fronts
        self._send_parts = send
        self._state = state
        self._failed = failed
        self._news: Message = Progress("Starting")  # the last announcement, for new fronts
        self._early_log: deque[LogRecord] = deque(maxlen=EARLY_LOG)  # before a front took it
        self._held = HeldContents()  # the cache's contents as sent to fronts
        self._reported = (0.0, 0)  # time of the last state report, and its step count
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="jengine-output", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Flush the queue and join the thread."""
        self._jobs.put(None)
        self._thread.join()

    def announce(self, news: Message) -> None:
        """Broadcast a message to all fronts, and send it to fronts that connect later."""

        def tell() -> None:
            self._news = news
            self._send(self._fronts.identities, news)

        self._jobs.put(tell)

    def greet(self, identity: bytes) -> None:
        """Send a new front the last announcement."""
        self._jobs.put(partial(self._greet, identity))

    def reply(self, identity: bytes, message: Message) -> None:
        self._jobs.put(lambda: self._send([identity], message))

    def deliver(self, deltas: list[TokenDelta]) -> None:
        """Send deltas to the fronts of their requests."""
        self._jobs.put(partial(self._send_deltas, deltas))

    def tell_changes(self, journal: ContentJournal | None) -> None:
        """Send the cache's added and removed block hashes, if a front wants them."""
        if journal is not None and (changes := journal.take()):
            self._jobs.put(partial(self._send_changes, changes))

    def step_failed(self, error: JengineError) -> None:
        """Tell all fronts that a step did not run."""
        failed = StepFailed(Failure.of(error))
        self._jobs.put(lambda: self._send(self._fronts.identities, failed))

    def log(self, record: LogRecord) -> None:
        """Send a log record to fronts that want it."""
        self._jobs.put(partial(self._send_log, record))

    # --- the thread ------------------------------------------------------------------------------

    def _write(self) -> None:
        try:
            while True:
                try:
                    job = self._jobs.get(timeout=max(self._report_due(), 0.0))
                except queue.Empty:
                    job = self._send_state
                if job is None:
                    return
                job()
                if self._report_due() <= 0:
                    self._send_state()
        except Exception as error:  # noqa: BLE001 - the thread that runs steps raises it
            self._failed(error)

    def _greet(self, identity: bytes) -> None:
        self._send([identity], self._news)
        if identity in self._fronts.content_takers:
            for changes in self._held.as_changes(MOST_CHANGES):
                self._send([identity], CacheChanges(changes))
        self.greeted.set()
        while self._early_log and self._fronts.log_takers:
            self._send(self._fronts.log_takers, self._early_log.popleft())

    def _send_changes(self, changes: list[bytes]) -> None:
        self._held.note(changes)
        self._send(self._fronts.content_takers, CacheChanges(changes))

    def _send_log(self, record: LogRecord) -> None:
        takers = self._fronts.log_takers
        if not takers:
            self._early_log.append(record)
        self._send(takers, record)

    def _send_deltas(self, deltas: list[TokenDelta]) -> None:
        for identity, own in self._fronts.sorted(deltas).items():
            self._send([identity], Outputs(own))

    def _send_state(self) -> None:
        state = self._state()
        self._reported = (time.monotonic(), 0 if state is None else state.steps)
        if state is not None:
            self._send(self._fronts.identities, Pulse(state))

    def _report_due(self) -> float:
        """Seconds until the next state report."""
        when, steps = self._reported
        state = self._state()
        moved = state is not None and state.steps != steps
        return when + (REPORT if moved else QUIET_REPORT) - time.monotonic()

    def _send(self, identities: Iterable[bytes], message: Message) -> None:
        data = encode(message)
        for identity in identities:
            self._send_parts([identity, data])
