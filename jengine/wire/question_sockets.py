"""Request and reply between processes that share a secret, over ZMQ: a struct out, raw bytes back.

In: questions, from any thread; a function that answers them. Out: the reply's bytes. Peers without
the secret are rejected, sizes are limited before decoding, and a checksum binds a reply to its
question. Must not know the contents.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Generic, TypeVar

import msgspec
import zmq

from jengine.errors import JengineError
from jengine.wire.doors import Door
from jengine.wire.message import BadFrame, Reader, encode

logger = logging.getLogger(__name__)
# Poll timeouts in ms: while questions wait for their data, and otherwise (the latency of `close`).
GLANCE, IDLE = 5, 100
MOST_QUESTION = 64 * 2**10  # bytes
# Questions held until their data exists: how many, and how long at most.
MOST_WAITING, MOST_SECONDS = 4096, 600.0
MOST_AT_ONCE = 256  # questions read before held ones are retried
# Replies queued per peer that does not read; later ones are dropped.
MOST_UNREAD = 64
ABSENT = "there is no such content"
FAILED = "an error while answering, which is in the log there"

Data = bytes | memoryview
Q = TypeVar("Q", bound=msgspec.Struct)


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A question on the wire."""

    number: int
    seconds: float  # how long the answerer may hold it until the data exists
    asked: bytes


class Header(msgspec.Struct, frozen=True, array_like=True):
    """Header of a reply: followed by its payload, or alone with the problem."""

    number: int
    problem: str = ""
    checksum: bytes = b""


_envelope_of = Reader[Envelope](Envelope, "an asker", MOST_QUESTION)
_header_of = Reader[Header](Header, "a peer")


class NoAnswer(Exception):
    """The reply was malformed, damaged or to another question."""


class Silent(NoAnswer):
    """No reply within the time limit."""


class Refused(Exception):
    """The peer refused, with a reason."""


class Answerer(Generic[Q]):
    """A thread that answers questions of one kind at an address."""

    def __init__(self, door: Door, kind: type[Q], answer: Callable[[Q], Data | None]) -> None:
        """`answer` returns None for data that does not exist yet, and raises a JengineError to
        refuse. Raises zmq.ZMQError if the address cannot be bound."""
        self._read = Reader[Q](kind, "an asker", MOST_QUESTION)
        self._answer = answer
        self._ended = threading.Event()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MOST_QUESTION)
        self._socket.setsockopt(zmq.SNDHWM, MOST_UNREAD)
        try:
            door.bind(self._socket)
        except zmq.ZMQError:
            self._context.destroy(linger=0)
            raise
        self._thread = threading.Thread(target=self._serve, daemon=True, name="answers")
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def _serve(self) -> None:
        waiting: list[tuple[float, bytes, Envelope, Q]] = []
        while not self._ended.is_set():
            if self._socket.poll(GLANCE if waiting else IDLE):
                waiting += self._questions(MOST_WAITING - len(waiting))
            waiting = [one for one in waiting if not self._answered(*one)]

    def _questions(self, most_waiting: int) -> list[tuple[float, bytes, Envelope, Q]]:
        """Read questions, each with the deadline for its data. At most `most_waiting` may be held;
        later ones have no time to wait."""
        found: list[tuple[float, bytes, Envelope, Q]] = []
        for _ in range(MOST_AT_ONCE):
            if not self._socket.poll(0):
                break
            sender, *frames = self._socket.recv_multipart()
            try:
                (frame,) = frames
                question = _envelope_of(frame)
                asked = self._read(question.asked)
            except ValueError:
                continue  # malformed: no reply
            seconds = min(question.seconds, MOST_SECONDS) if len(found) < most_waiting else 0.0
            found.append((time.monotonic() + seconds, sender, question, asked))
        return found

    def _answered(self, until: float, sender: bytes, question: Envelope, asked: Q) -> bool:
        """Reply, or return False while the data may still arrive."""
        problem = ABSENT
        try:
            data = self._answer(asked)
        except JengineError as error:
            data, problem, until = None, str(error), 0.0
        except Exception:  # one question must not end the thread that answers all
            logger.exception("No answer to %.200r", asked)
            data, problem, until = None, FAILED, 0.0
        if data is None and time.monotonic() < until:
            return False
        self._socket.send_multipart([sender, *answer_frames(question, data, problem)], copy=False)
        return True


class Asker:
    """Asks peers. Thread-safe: each thread has a connection of its own to each address."""

    def __init__(self, secret: bytes, most_bytes: int) -> None:
        """`most_bytes`: the largest accepted reply."""
        self._secret = secret
        self._most_bytes = most_bytes
        self._context = zmq.Context()
        self._sockets = threading.local()
        self._numbers = itertools.count(1)

    def ask(
        self, address: str, asked: msgspec.Struct, seconds: float, may_wait: float = 0.0
    ) -> memoryview:
        """Ask and wait at most `seconds`; the peer may hold the question for `may_wait` seconds
        until it has the data. Raises Silent, NoAnswer or Refused, naming the address."""
        question = Envelope(next(self._numbers), may_wait, encode(asked))
        try:
            return self._exchange(self._socket(address), address, question, seconds)
        except NoAnswer:
            self._sockets.known.pop(address).close(linger=0)  # drops a late reply
            raise

    def close(self) -> None:
        """Ask no more; no thread is asking."""
        self._context.destroy(linger=0)

    def _exchange(
        self, socket: zmq.Socket[bytes], address: str, question: Envelope, seconds: float
    ) -> memoryview:
        socket.send(encode(question))
        if not socket.poll(int(seconds * 1000)):
            raise Silent(
                f"{address} did not answer within {seconds:g} s. Does an engine serve there, with "
                "the same secret?"
            )
        head, *frames = socket.recv_multipart(copy=False)
        try:
            header = _header_of(head.buffer)
        except BadFrame as error:
            raise NoAnswer(
                f"{address} sent what is no answer ({error}). Is it the same version of jengine?"
            ) from error
        if header.number == question.number and header.problem:
            raise Refused(f"{address} says: {header.problem}")
        data = frames[0].buffer if len(frames) == 1 else memoryview(b"")
        if answer_header(question, data) != header or len(frames) != 1:
            raise NoAnswer(f"the answer of {address} is damaged. Start again.")
        return data

    def _socket(self, address: str) -> zmq.Socket[bytes]:
        """This thread's connection."""
        known: dict[str, zmq.Socket[bytes]] = self._sockets.__dict__.setdefault("known", {})
        if address not in known:
            socket = known[address] = self._context.socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.MAXMSGSIZE, self._most_bytes)
            Door(address, self._secret).connect(socket)
        return known[address]


def answer_frames(question: Envelope, data: Data | None, problem: str = "") -> list[Data]:
    """Frames of a reply with data, or with a problem instead."""
    if data is None:
        return [encode(Header(question.number, problem))]
    return [encode(answer_header(question, data)), data]


def answer_header(question: Envelope, data: Data) -> Header:
    """The header of bytes that answer a question, with a checksum of both."""
    digest = blake2b(question.asked, digest_size=32)
    digest.update(data)
    return Header(question.number, "", digest.digest())
