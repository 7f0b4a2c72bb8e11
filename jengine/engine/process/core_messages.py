"""Dispatches a core's messages, on the socket's thread.

In: frames from the core. Out: deltas to the mailbox, answers to pending questions, startup messages
and death notices; keeps the core's last reported state. Must not know sockets.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec

from jengine.engine.core_state import CoreState
from jengine.engine.process.mailbox import Mailbox
from jengine.engine.process.pending_questions import Asking
from jengine.engine.process.startup import Startup
from jengine.engine.process.to_front import (
    CacheChanges,
    CoreAnswer,
    CoreRefusal,
    Dead,
    FromCore,
    LogRecord,
    NotReady,
    Outputs,
    Progress,
    Pulse,
    Ready,
    StepFailed,
    decode_from_core,
)
from jengine.errors import EngineDead
from jengine.kvcache.content_journal import HeldContents
from jengine.wire.message import BadFrame
from jengine.wire.socket_loop import Parts

logger = logging.getLogger(__name__)
# The name of a core's process in log records, as vLLM's users know it.
CORE_NAME = "EngineCore"


class Heard:
    """Message handler for one core."""

    def __init__(
        self,
        mailbox: Mailbox,
        asking: Asking,
        beginning: Startup,
        die: Callable[[EngineDead], None],
    ) -> None:
        """`die` is called with the reason when the core announces its end."""
        self.dropped = 0  # frames that could not be read
        self.contents = HeldContents()  # of the core's cache, if it reports them
        self._mailbox = mailbox
        self._asking = asking
        self._beginning = beginning
        self._die = die
        self._state, self._heard = CoreState(), time.monotonic()

    @property
    def state(self) -> CoreState:
        """The core's last reported state, with its age; never waits."""
        return msgspec.structs.replace(self._state, age=time.monotonic() - self._heard)

    def receive(self, parts: Parts) -> None:
        """Dispatch a frame; an unreadable one is logged and counted."""
        try:
            if len(parts) != 1:
                raise BadFrame(f"a message of {len(parts)} parts: expected one")
            message = decode_from_core(parts[0])
        except BadFrame as error:
            self.dropped += 1
            logger.warning("dropped what the engine core sent: %s", error)
            return
        self._heard = time.monotonic()
        self._take(message)

    def _take(self, message: FromCore) -> None:
        match message:
            case Outputs(deltas):
                self._mailbox.deliver(deltas)
            case CacheChanges(changes):
                self.contents.note(changes)
            case Pulse(state):
                self._state = state
            case CoreAnswer(number, value):
                self._asking.resolve(number, value)
            case CoreRefusal(number, failure):
                self._asking.resolve(number, failure.error)
            case StepFailed(failure):
                self._mailbox.interrupt(failure.error)
            case Progress() | Ready() | NotReady():
                self._beginning.note(message)
            case Dead(failure):
                self._die(EngineDead(failure.text))
            case LogRecord():
                log_as_core(message)


def log_as_core(told: LogRecord) -> None:
    """Emit a core's log record here; `processName` distinguishes it from this process's."""
    found = logging.getLogger(told.name)
    if found.isEnabledFor(told.level):
        record = found.makeRecord(
            told.name, told.level, told.path, told.line, "%s", (told.text,), None
        )
        record.created, record.process, record.processName = told.created, told.process, CORE_NAME
        found.handle(record)
