"""What processes tell each other, as msgpack. Arrays travel as their bytes; nothing is pickled.

In: messages. Out: bytes, and back. Must not know sockets.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from jengine.executor.protocol import Capacity, WorkerHealth
from jengine.outputs import Counts, StepLogprobs, StepOutput, TokenDelta
from jengine.plan import Plan

ARRAY = 1


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages."""


class Beat(Message, frozen=True):
    """A sign of life, with the last step that this process has begun."""

    step: int


class Run(Message, frozen=True):
    """Leader: run this plan."""

    plan: Plan


class Done(Message, frozen=True):
    """Leader: steps up to `read` have ended; what the requests got from it."""

    read: int
    deltas: list[TokenDelta]
    counts: Counts


class Read(Message, frozen=True):
    """Leader: steps up to `read` are being read, without anything to be told of them yet."""

    read: int


class End(Message, frozen=True):
    """Follower: this process does not want this request any longer."""

    request_id: str


class Ended(Message, frozen=True):
    """Leader: this request has been aborted, or had ended before (no delta)."""

    request_id: str
    delta: TokenDelta | None


class Ask(Message, frozen=True):
    """Leader: report number so many is due."""

    number: int


class Report(Message, frozen=True):
    """Follower: what this process is about to do, as digests; a number or an answer where asked."""

    subject: str
    names: list[str]
    digests: list[bytes]
    number: int = 0
    answer: bytes = b""


class Verdict(Message, frozen=True):
    """Leader: what is wrong with the reports, their smallest number, what it calls the things."""

    problem: str | None
    least: int
    names: list[str]
    answers: list[bytes] = []  # what the reports answered, by rank


class Call(Message, frozen=True):
    """To the leader, and from it to all: do one of `executor.calls.CALLS`."""

    method: str
    arguments: bytes


class Answers(Message, frozen=True):
    """Leader to driver: what each process answered to a call, by rank."""

    answers: list[bytes]


class AskHealth(Message, frozen=True):
    """Driver: how is everybody?"""


class Health(Message, frozen=True):
    """Leader to driver: what it knows of everybody."""

    workers: list[WorkerHealth]


class Ready(Message, frozen=True):
    """Leader to driver: plans can run now."""

    capacity: Capacity


class Stepped(Message, frozen=True):
    """Leader to driver: what the next of its plans sampled."""

    output: StepOutput


class Refused(Message, frozen=True):
    """Leader to driver: nothing of the next of its plans has run, because of this."""

    problem: str


class Sampled(Message, frozen=True):
    """Follower: digest of all plans and tokens up to a step."""

    step: int
    digest: bytes


class Fatal(Message, frozen=True):
    """The engine cannot go on in any process."""

    reason: str


class Goodbye(Message, frozen=True):
    """This process takes no further part, on purpose."""

    reason: str


AnyMessage = (
    Beat
    | Run
    | Done
    | Read
    | End
    | Ended
    | Ask
    | Report
    | Verdict
    | Sampled
    | Fatal
    | Goodbye
    | Call
    | Answers
    | AskHealth
    | Health
    | Ready
    | Stepped
    | Refused
)


def _pack_array(value: Any) -> msgspec.msgpack.Ext:
    if not isinstance(value, np.ndarray):
        raise NotImplementedError(f"a {type(value).__name__} in a message")
    parts = (value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes())
    return msgspec.msgpack.Ext(ARRAY, msgspec.msgpack.encode(parts))


def _unpack_array(code: int, data: memoryview) -> np.ndarray:
    if code != ARRAY:
        raise ValueError(f"extension {code} in a message")
    kind, shape, content = msgspec.msgpack.decode(data, type=tuple[str, tuple[int, ...], bytes])
    return np.frombuffer(content, np.dtype(kind)).reshape(shape).copy()


_encoder = msgspec.msgpack.Encoder(enc_hook=_pack_array)
_decoder = msgspec.msgpack.Decoder(AnyMessage, ext_hook=_unpack_array)


def encode(message: Message) -> bytes:
    """A message as bytes."""
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    """The message in these bytes."""
    message = _decoder.decode(data)
    for delta in _deltas(message):
        for name in ("logprobs", "prompt_logprobs"):  # a named tuple arrives as a list
            parts = getattr(delta, name)
            setattr(delta, name, None if parts is None else StepLogprobs(*parts))
    return message


def _deltas(message: Message) -> list[TokenDelta]:
    if isinstance(message, Done):
        return message.deltas
    if isinstance(message, Ended) and message.delta is not None:
        return [message.delta]
    return []
