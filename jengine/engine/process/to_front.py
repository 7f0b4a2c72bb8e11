"""Messages from a core to its fronts. Must not know sockets."""

from __future__ import annotations

import msgspec

from jengine.config import CacheConfig, ScheduleConfig
from jengine.engine.core_state import CoreState
from jengine.engine.process.model_frame import ModelFrame
from jengine.errors import EngineDead, JengineError, error_named
from jengine.outputs import TokenDelta
from jengine.wire.message import Message, Reader


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """A serialised exception."""

    kind: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Serialise a jengine error by class name; any other as EngineDead with its type and
        text."""
        if isinstance(error, JengineError):
            return cls(type(error).__name__, str(error))
        return cls(EngineDead.__name__, f"{type(error).__name__}: {error}")

    @property
    def error(self) -> JengineError:
        """Deserialise to the original class."""
        return error_named(self.kind, self.text)


class Progress(Message, frozen=True):
    """Startup progress."""

    stage: str  # such as "Loading weights"
    done: float = 0
    total: float | None = None
    unit: str = ""
    seconds: float = 0.0  # since the stage began

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds left, or None if the stage is not countable or has not begun."""
        if not self.total or not self.done:
            return None
        return self.seconds * (self.total - self.done) / self.done


class Ready(Message, frozen=True):
    """The engine is ready; what a front needs to know of it."""

    process: int  # of the core
    model: ModelFrame
    folder: str | None
    schedule: ScheduleConfig
    cache: CacheConfig
    platform: str
    version: str  # of jengine
    door: str | None = None  # address for fronts of other hosts; None: not admitted


class NotReady(Message, frozen=True):
    """The engine could not be built."""

    failure: Failure


class Outputs(Message, frozen=True):
    """New deltas of this front's requests."""

    deltas: list[TokenDelta]


class CacheChanges(Message, frozen=True):
    """Block hashes added to and removed from the core's cache, in the journal's encoding."""

    changes: list[bytes]


class Pulse(Message, frozen=True):
    """The core's state; also a heartbeat during long steps."""

    state: CoreState


class StepFailed(Message, frozen=True):
    """A step did not run, and all requests were aborted; the core continues."""

    failure: Failure


class Dead(Message, frozen=True):
    failure: Failure


class CoreAnswer(Message, frozen=True):
    """Encoded answer to a question; its type follows from the question."""

    number: int
    value: bytes


class CoreRefusal(Message, frozen=True):
    """The error raised by a question."""

    number: int
    failure: Failure


class LogRecord(Message, frozen=True):
    name: str
    level: int
    text: str
    path: str
    line: int
    created: float
    process: int


FromCore = (
    Progress
    | Ready
    | NotReady
    | Outputs
    | CacheChanges
    | Pulse
    | StepFailed
    | Dead
    | CoreAnswer
    | CoreRefusal
    | LogRecord
)
decode_from_core = Reader[FromCore](FromCore, "the core")
