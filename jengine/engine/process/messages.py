"""The messages between fronts and an engine core, encoded as msgpack. No pickle.

In: messages. Out: bytes, and back; bytes that are no message raise BadFrame. Must not know sockets.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from jengine.config import CacheConfig, ScheduleConfig
from jengine.engine.core_state import CoreState
from jengine.engine.process.arrays import pack_array, unpack_array
from jengine.engine.process.model_frame import ModelFrame
from jengine.errors import EngineDead, JengineError, error_named
from jengine.logprobs import StepLogprobs
from jengine.outputs import TokenDelta
from jengine.request import WireRequest

# Bytes of one message. A prompt of a million tokens takes five million.
MOST_BYTES = 64 * 2**20


class BadFrame(ValueError):
    """Bytes that are no message."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages."""


# --- from a front to the core ------------------------------------------------------------------


class Hello(Message, frozen=True):
    """The first message of a front."""

    takes_logs: bool = False  # the core's log records go to this front
    takes_contents: bool = False  # so do the contents of its cache, by which requests are routed


class AddRequest(Message, frozen=True):
    """Queue a request."""

    wire: WireRequest


class AbortRequest(Message, frozen=True):
    """End a request."""

    request_id: str


class Settle(Message, frozen=True):
    """Answer when everything sent before has reached the scheduler."""


class AskStats(Message, frozen=True):
    """The counts between two steps."""


class CallWorkers(Message, frozen=True):
    """One of `executor.calls.CALLS` in every process that runs steps."""

    method: str
    arguments: bytes


class ResetPrefixCache(Message, frozen=True):
    """Forget cached prefixes."""

    reset_running_requests: bool


class AskHealth(Message, frozen=True):
    """The health of every process that runs steps."""


class Probe(Message, frozen=True):
    """Run a step with nothing in it."""


class Pause(Message, frozen=True):
    """Run no more steps; answered when the last one has ended."""


class Resume(Message, frozen=True):
    """Run steps again."""


Question = Settle | AskStats | CallWorkers | ResetPrefixCache | AskHealth | Probe | Pause | Resume


class Ask(Message, frozen=True):
    """A question, which gets an Answer or a Refusal with the same number."""

    number: int
    question: Question


class Leave(Message, frozen=True):
    """The front leaves: end its requests."""


class Shutdown(Message, frozen=True):
    """The front that started the core ends it."""


FromFront = Hello | AddRequest | AbortRequest | Ask | Leave | Shutdown

# --- from the core to its fronts ---------------------------------------------------------------


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

_encoder = msgspec.msgpack.Encoder(enc_hook=pack_array)
_from_front = msgspec.msgpack.Decoder(FromFront)
_from_core = msgspec.msgpack.Decoder(FromCore, ext_hook=unpack_array)
# What does not describe a value of the right type, or nests too deeply.
UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


def encode(message: Message) -> bytes:
    """A message as bytes."""
    return _encoder.encode(message)


def decode_from_front(data: bytes) -> FromFront:
    """The message of a front in these bytes."""
    _check_size(data)
    try:
        return _from_front.decode(data)
    except UNREADABLE as error:
        raise BadFrame(f"a front sent {len(data)} bytes that are no message: {error}") from error


def decode_from_core(data: bytes) -> FromCore:
    """The message of the core in these bytes."""
    _check_size(data)
    try:
        message = _from_core.decode(data)
    except UNREADABLE as error:
        raise BadFrame(f"the core sent {len(data)} bytes that are no message: {error}") from error
    if isinstance(message, Outputs):
        for delta in message.deltas:
            delta.logprobs = _scores(delta.logprobs)
            delta.prompt_logprobs = _scores(delta.prompt_logprobs)
    return message


def _check_size(data: bytes) -> None:
    if len(data) > MOST_BYTES:
        raise BadFrame(f"a message of {len(data)} bytes: expected at most {MOST_BYTES}")


def _scores(parts: Any) -> StepLogprobs | None:
    """Log-probabilities, which arrive as a list of their arrays."""
    if parts is None:
        return None
    whole = isinstance(parts, list) and len(parts) == len(StepLogprobs._fields)
    if not whole or not all(isinstance(part, np.ndarray) for part in parts):
        raise BadFrame("the core sent log-probabilities that are not three arrays")
    return StepLogprobs(*parts)
