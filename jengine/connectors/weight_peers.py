"""Weights from an engine that serves to one that starts, over ZMQ: a list of parameters, then
pieces of their bytes, by any number of connections at a time. Must not know arrays, or what
parameters mean.

Parameters are the declared ones, as they are now; connections read ahead of what is put on devices.
The folder of the engine that starts needs no weights. The one that serves copies weights of which
steps take another form.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import msgspec
import zmq

from jengine.connectors.weight_settings import NAME, WeightSettings
from jengine.errors import CheckpointError, ConfigError
from jengine.wire.asking import Answerer, Asker, NoAnswer, Refused

logger = logging.getLogger(__name__)
MOST_ANSWER = 2**28  # bytes
MOST_PIECE = 2**26


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

    name: str = ""  # "": the list
    version: int = 0
    begin: int = 0
    end: int = 0


class WeightSource(Protocol):
    """The parameters of the engine that serves. Raises CheckpointError with a reason."""

    def listed(self) -> WeightList:
        """What there is now."""
        ...

    def piece(self, name: str, version: int, begin: int, end: int) -> memoryview:
        """Bytes of a parameter."""
        ...


class WeightServer:
    """Serves parameters at an address."""

    def __init__(self, settings: WeightSettings, source: WeightSource) -> None:
        assert settings.serve is not None
        self._source = source
        try:
            self._answerer = Answerer(settings.serve, settings.secret, Question, self._answer)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"{NAME}['serve']: {settings.serve} cannot be listened at ({error}). Give an "
                "address of this host with a port of this engine alone."
            ) from error
        logger.info("Weights are served at %s", settings.serve)

    def close(self) -> None:
        """Serve nobody any more."""
        self._answerer.close()

    def _answer(self, asked: Question) -> bytes | memoryview:
        if asked.name:
            return self._source.piece(asked.name, asked.version, asked.begin, asked.end)
        return msgspec.msgpack.encode(self._source.listed())


class WeightClient:
    """Asks an engine that serves. Any thread may ask; each has a connection of its own."""

    def __init__(self, settings: WeightSettings) -> None:
        assert settings.peer is not None
        self._peer = settings.peer
        self._seconds = settings.seconds
        self._asker = Asker(settings.secret, MOST_ANSWER)

    def listed(self) -> WeightList:
        """The parameters that there are."""
        return msgspec.msgpack.decode(self._ask(Question()), type=WeightList)

    def piece(self, name: str, version: int, begin: int, end: int) -> memoryview:
        """Bytes of a parameter, as it was when it was listed."""
        data = self._ask(Question(name, version, begin, end))
        if len(data) != end - begin:
            raise CheckpointError(
                f"{self._peer}: {len(data)} bytes of {name} came; expected {end - begin}."
            )
        return data

    def close(self) -> None:
        """Ask no more; no thread is asking."""
        self._asker.close()

    def _ask(self, asked: Question) -> memoryview:
        try:
            return self._asker.ask(self._peer, asked, self._seconds)
        except (NoAnswer, Refused) as error:
            raise CheckpointError(f"load_format='peer': {error}") from error


def pieces(num_bytes: int) -> Sequence[tuple[int, int]]:
    """Where the pieces of so many bytes begin and end."""
    return [
        (begin, min(begin + MOST_PIECE, num_bytes)) for begin in range(0, num_bytes, MOST_PIECE)
    ]
