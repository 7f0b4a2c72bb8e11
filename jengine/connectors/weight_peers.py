"""Weights from an engine that serves to one that starts, over ZMQ: a list of parameters, then
pieces of their bytes, by any number of connections at a time.

Frames are a msgpack header and raw bytes with a checksum; both sides know one secret, from which
the sockets' keys follow. Must not know arrays, or what parameters mean.

Parameters are the declared ones, as they are now; connections read ahead of what is put on devices.
The folder of the engine that starts needs no weights. The one that serves copies weights of which
steps take another form.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol

import msgspec
import zmq

from jengine.connectors.curve import as_client, as_server
from jengine.connectors.weight_settings import NAME, WeightSettings
from jengine.errors import CheckpointError, ConfigError

logger = logging.getLogger(__name__)
GLANCE = 100  # milliseconds between two looks at whether the server is to end
MOST_QUESTION = 64 * 2**10  # bytes
MOST_ANSWER = 2**28
MOST_PIECE = 2**26
DIGEST_BYTES = 32


class ParameterInfo(msgspec.Struct, frozen=True, array_like=True):
    """One parameter as its engine declares it."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class WeightList(msgspec.Struct, frozen=True, array_like=True):
    """All parameters, and a number that is another one once they have been replaced."""

    version: int
    parameters: list[ParameterInfo]


class Question(msgspec.Struct, frozen=True, array_like=True):
    """What a starting engine asks for: the list, or bytes of a parameter of that list."""

    number: int
    name: str = ""  # "": the list
    version: int = 0
    begin: int = 0
    end: int = 0


class Header(msgspec.Struct, frozen=True, array_like=True):
    """The answer; the bytes follow, unless there is a problem."""

    number: int
    problem: str = ""
    checksum: bytes = b""


class WeightSource(Protocol):
    """The parameters of the engine that serves. Raises CheckpointError with a reason."""

    def listed(self) -> WeightList:
        """What there is now."""
        ...

    def piece(self, name: str, version: int, begin: int, end: int) -> memoryview:
        """Bytes of a parameter."""
        ...


class WeightServer:
    """A thread that answers questions."""

    def __init__(self, settings: WeightSettings, source: WeightSource) -> None:
        assert settings.serve is not None
        self._source = source
        self._context = zmq.Context()
        self._ended = threading.Event()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MOST_QUESTION)
        as_server(self._socket, settings.serve, settings.secret)
        try:
            self._socket.bind(settings.serve)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ConfigError(
                f"{NAME}['serve']: {settings.serve} cannot be listened at ({error}). Give an "
                "address of this host with a port of this engine alone."
            ) from error
        self._thread = threading.Thread(target=self._serve, daemon=True, name="weights-serve")
        self._thread.start()
        logger.info("Weights are served at %s", settings.serve)

    def close(self) -> None:
        """Serve nobody any more."""
        self._ended.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def _serve(self) -> None:
        while not self._ended.is_set():
            if not self._socket.poll(GLANCE):
                continue
            sender, *frames = self._socket.recv_multipart()
            try:
                (frame,) = frames
                asked = msgspec.msgpack.decode(frame, type=Question)
            except (ValueError, msgspec.MsgspecError):
                continue  # no question: it gets no answer
            self._socket.send_multipart([sender, *self._answer(asked)], copy=False)

    def _answer(self, asked: Question) -> list[bytes | memoryview]:
        try:
            data: bytes | memoryview
            if asked.name:
                data = self._source.piece(asked.name, asked.version, asked.begin, asked.end)
            else:
                data = msgspec.msgpack.encode(self._source.listed())
        except CheckpointError as error:
            return [msgspec.msgpack.encode(Header(asked.number, str(error)))]
        header = Header(asked.number, "", checksum(asked.name, asked.begin, data))
        return [msgspec.msgpack.encode(header), data]


class WeightClient:
    """Asks an engine that serves. Any thread may ask; each has a connection of its own."""

    def __init__(self, settings: WeightSettings) -> None:
        assert settings.peer is not None
        self._peer = settings.peer
        self._settings = settings
        self._context = zmq.Context()
        self._sockets = threading.local()
        self._lock = threading.Lock()
        self._numbers = 0

    def listed(self) -> WeightList:
        """The parameters that there are."""
        return msgspec.msgpack.decode(self._ask(Question(self._number())), type=WeightList)

    def piece(self, name: str, version: int, begin: int, end: int) -> memoryview:
        """Bytes of a parameter, as it was when it was listed."""
        data = self._ask(Question(self._number(), name, version, begin, end))
        if len(data) != end - begin:
            raise CheckpointError(
                f"{self._peer}: {len(data)} bytes of {name} came; expected {end - begin}."
            )
        return data

    def close(self) -> None:
        """Ask no more; no thread is asking."""
        self._context.destroy(linger=0)

    def _number(self) -> int:
        with self._lock:
            self._numbers += 1
            return self._numbers

    def _ask(self, asked: Question) -> memoryview:
        socket = self._socket()
        socket.send(msgspec.msgpack.encode(asked))
        if not socket.poll(int(self._settings.seconds * 1000)):
            raise CheckpointError(
                f"load_format='peer': {self._peer} did not answer within {self._settings.seconds:g}"
                " s. Is an engine serving its weights there, with the same secret?"
            )
        head, *frames = socket.recv_multipart(copy=False)
        try:
            header = msgspec.msgpack.decode(head.buffer, type=Header)
        except (ValueError, msgspec.MsgspecError) as error:
            raise CheckpointError(
                f"load_format='peer': {self._peer} sent what is no answer ({error}). Does the same "
                "version of jengine serve its weights there?"
            ) from error
        if header.problem:
            raise CheckpointError(f"load_format='peer': {self._peer} says: {header.problem}")
        data = frames[0].buffer if frames else memoryview(b"")
        if header.number != asked.number or header.checksum != checksum(
            asked.name, asked.begin, data
        ):
            raise CheckpointError(
                f"load_format='peer': the answer of {self._peer} about {asked.name or 'its list'} "
                "is damaged. Start again."
            )
        return data

    def _socket(self) -> zmq.Socket[bytes]:
        """This thread's connection."""
        found: zmq.Socket[bytes] | None = getattr(self._sockets, "own", None)
        if found is None:
            found = self._sockets.own = self._context.socket(zmq.DEALER)
            found.setsockopt(zmq.LINGER, 0)
            found.setsockopt(zmq.MAXMSGSIZE, MOST_ANSWER)
            as_client(found, self._peer, self._settings.secret)
            found.connect(self._peer)
        return found


def pieces(num_bytes: int) -> Sequence[tuple[int, int]]:
    """Where the pieces of so many bytes begin and end."""
    return [
        (begin, min(begin + MOST_PIECE, num_bytes)) for begin in range(0, num_bytes, MOST_PIECE)
    ]


def checksum(name: str, begin: int, data: bytes | memoryview) -> bytes:
    """The checksum of bytes and their place."""
    digest = blake2b(f"{name} {begin} ".encode(), digest_size=DIGEST_BYTES)
    digest.update(data)
    return digest.digest()
