"""The messages that an engine core sends to its fronts. Must not know sockets."""

from __future__ import annotations

import msgspec

from jengine.config import CacheConfig, ScheduleConfig
from jengine.engine.core_state import CoreState
from jengine.engine.process.model_frame import ModelFrame
from jengine.errors import EngineDead, JengineError, error_named
from jengine.outputs import TokenDelta
from jengine.wire.message import Message


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """An error as plain data."""

    kind: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """An error of ours by its name; any other as an EngineDead that says what it was."""
        if isinstance(error, JengineError):
            return cls(type(error).__name__, str(error))
        return cls(EngineDead.__name__, f"{type(error).__name__}: {error}")

    @property
    def error(self) -> JengineError:
        """The error, of the same class."""
        return error_named(self.kind, self.text)


class Progress(Message, frozen=True):
    """What the core is doing before it is ready."""

    stage: str  # such as "Loading weights"
    done: float = 0
    total: float | None = None
    unit: str = ""
    seconds: float = 0.0  # since the stage began

    @property
    def seconds_left(self) -> float | None:
        """An estimate, if the stage can be counted and has begun."""
        if not self.total or not self.done:
            return None
        return self.seconds * (self.total - self.done) / self.done


class Ready(Message, frozen=True):
    """Requests can be sent. What a front must know of the engine."""

    process: int  # of the core
    model: ModelFrame
    folder: str | None
    schedule: ScheduleConfig
    cache: CacheConfig
    platform: str
    version: str  # of jengine
    door: str | None = None  # the address for fronts of other hosts, where they are let in


class NotReady(Message, frozen=True):
    """The engine could not be built."""

    failure: Failure


class Outputs(Message, frozen=True):
    """New tokens of this front's requests."""

    deltas: list[TokenDelta]


class CacheChanges(Message, frozen=True):
    """Block hashes that the core's cache has begun and ceased to hold, as its journal has them."""

    changes: list[bytes]


class Pulse(Message, frozen=True):
    """The state of the core: the sign that its process lives, also while a step takes long."""

    state: CoreState


class StepFailed(Message, frozen=True):
    """A step did not run. Its requests have ended; the core goes on."""

    failure: Failure


class Dead(Message, frozen=True):
    """The core has stopped."""

    failure: Failure


class Answer(Message, frozen=True):
    """The answer to a question, in bytes whose type follows from the question."""

    number: int
    value: bytes


class Refusal(Message, frozen=True):
    """The error that a question led to."""

    number: int
    failure: Failure


class LogRecord(Message, frozen=True):
    """A line of the core's log."""

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
    | Answer
    | Refusal
    | LogRecord
)
