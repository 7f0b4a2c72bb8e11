"""Weight transfer between engines over ZMQ: the list of parameters, then byte ranges of them, over
any number of connections. Must not know arrays, or what parameters mean.

Clients see the parameters current at the time of the request, in declared layout (the server copies
those that its steps hold in another), and read ahead of placement on devices. The starting engine's
model folder needs no weights.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import msgspec

from jengine.connectors.weight_settings import NAME, WeightSettings
from jengine.errors import CheckpointError
from jengine.wire.doors import Door, listening
from jengine.wire.question_sockets import Answerer, Asker, NoAnswer, Refused

logger = logging.getLogger(__name__)
MOST_ANSWER = 2**28  # bytes
MOST_PIECE = 2**26


class ParameterInfo(msgspec.Struct, frozen=True, array_like=True):
    """Name, shape and dtype of a parameter as declared."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class WeightList(msgspec.Struct, frozen=True, array_like=True):
    """All declared parameters. `version` changes whenever parameters are replaced."""

    version: int
    parameters: list[ParameterInfo]


class WeightQuestion(msgspec.Struct, frozen=True, array_like=True):
    """Request of a starting engine: the parameter list, or a byte range of one parameter."""

    name: str = ""  # "": the list
    version: int = 0
    begin: int = 0
    end: int = 0


class WeightSource(Protocol):
    """The serving engine's parameters. Methods raise CheckpointError with a reason."""

    def listed(self) -> WeightList:
        """The current parameters."""
        ...

    def piece(self, name: str, version: int, begin: int, end: int) -> memoryview:
        """Bytes begin to end of a parameter; raises if the parameters have been replaced since
        `version`."""
        ...


class WeightServer:
    """Answers requests for parameters at a ZMQ address."""

    def __init__(self, settings: WeightSettings, source: WeightSource) -> None:
        assert settings.serve is not None
        self._source = source
        with listening(
            f"{NAME}['serve']: {settings.serve} cannot be listened at",
            "Give an address of this host with a port of this engine alone.",
        ):
            self._answerer = Answerer(
                Door(settings.serve, settings.secret), WeightQuestion, self._answer
            )
        logger.info("Weights are served at %s", settings.serve)

    def close(self) -> None:
        self._answerer.close()

    def _answer(self, asked: WeightQuestion) -> bytes | memoryview:
        if asked.name:
            return self._source.piece(asked.name, asked.version, asked.begin, asked.end)
        return msgspec.msgpack.encode(self._source.listed())


class WeightClient:
    """Fetches parameters from a serving engine. Thread-safe: each thread has a connection of its
    own."""

    def __init__(self, settings: WeightSettings) -> None:
        assert settings.peer is not None
        self._peer = settings.peer
        self._seconds = settings.seconds
        self._asker = Asker(settings.secret, MOST_ANSWER)

    def listed(self) -> WeightList:
        """The serving engine's parameters."""
        return msgspec.msgpack.decode(self._ask(WeightQuestion()), type=WeightList)

    def piece(self, name: str, version: int, begin: int, end: int) -> memoryview:
        """Bytes of a parameter; raises CheckpointError if it was replaced since it was listed."""
        data = self._ask(WeightQuestion(name, version, begin, end))
        if len(data) != end - begin:
            raise CheckpointError(
                f"{self._peer}: {len(data)} bytes of {name} came; expected {end - begin}."
            )
        return data

    def close(self) -> None:
        """Close all connections. No thread may be fetching."""
        self._asker.close()

    def _ask(self, asked: WeightQuestion) -> memoryview:
        try:
            return self._asker.ask(self._peer, asked, self._seconds)
        except (NoAnswer, Refused) as error:
            raise CheckpointError(f"load_format='peer': {error}") from error


def pieces(num_bytes: int) -> Sequence[tuple[int, int]]:
    """Split a parameter into byte ranges of one request each."""
    return [
        (begin, min(begin + MOST_PIECE, num_bytes)) for begin in range(0, num_bytes, MOST_PIECE)
    ]
