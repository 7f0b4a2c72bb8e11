"""How cores of other hosts become replicas: they join at one address, the front's.

In: the address, a secret, ranks. Out: where each rank's core lets fronts in. The connection stays
open: a host that joined notices when the front is gone. Must not know how cores are started.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

import msgspec
import zmq

from jengine.engine.process.messages import UNREADABLE, Progress
from jengine.engine.process.network import Door, tcp
from jengine.engine.process.socket_loop import Parts, SocketLoop
from jengine.errors import ConfigError, EngineDead

logger = logging.getLogger(__name__)
STAGE = "Joining cores of other hosts"
# Seconds between two lines of the log about ranks that are missing.
REMIND = 30.0


class Join(msgspec.Struct, frozen=True, tag=True):
    """A host's cores are ready."""

    addresses: dict[int, str]  # by rank
    version: str


class Joined(msgspec.Struct, frozen=True, tag=True):
    """They are replicas now."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """They cannot be."""

    why: str


_encoder = msgspec.msgpack.Encoder()
_from_host = msgspec.msgpack.Decoder(Join)
_from_desk = msgspec.msgpack.Decoder(Joined | Refused)


class JoinDesk:
    """The front's end: waits until every rank of other hosts has joined."""

    def __init__(self, door: Door, ranks: range, version: str) -> None:
        self._ranks = ranks
        self._version = version  # of jengine, the same on every host
        self._addresses: dict[int, str] = {}
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        try:
            self._socket = SocketLoop(
                zmq.ROUTER, None,
                receive=self._receive, failed=self._fail, unreachable=lambda _: None, door=door,
            )  # fmt: skip
        except zmq.ZMQError as error:
            raise ConfigError(
                f"data_parallel_address={door.host!r}, data_parallel_rpc_port={door.port}: cannot "
                f"listen there ({error}). Give an address of this host and a port that is free."
            ) from error
        self._socket.start()

    @property
    def address(self) -> str:
        """Where hosts join."""
        assert self._socket.door_address is not None, "it was bound"
        return self._socket.door_address

    @property
    def missing(self) -> list[int]:
        """The ranks that have not joined."""
        return [rank for rank in self._ranks if rank not in self._addresses]

    def wait(self, tell: Callable[[Progress], None], seconds: float) -> list[str]:
        """The addresses of all ranks, in their order; ConfigError if they do not come in time."""
        end, reminded = time.monotonic() + seconds, -REMIND
        while True:
            with self._changed:
                missing = self.missing
                if self._failure is not None:
                    raise EngineDead(f"the port for other hosts has failed: {self._failure}.")
                if not missing:
                    return [self._addresses[rank] for rank in self._ranks]
            now = time.monotonic()
            if now >= end:
                raise ConfigError(
                    f"data-parallel ranks {missing} have not joined at {self.address} within "
                    f"{seconds:g} s. Start them with --headless, this address and this secret."
                )
            if now - reminded >= REMIND:
                reminded = now
                logger.info("Waiting for data-parallel ranks %s at %s.", missing, self.address)
            tell(Progress(STAGE, len(self._ranks) - len(missing), len(self._ranks), "ranks"))
            with self._changed:
                self._changed.wait_for(
                    lambda before=missing: self._failure or self.missing != before,
                    min(end - now, REMIND),
                )

    def close(self) -> None:
        """Close the connections, by which hosts that joined notice that the front is gone."""
        self._socket.close()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def _receive(self, parts: Parts) -> None:
        try:
            join = _from_host.decode(parts[1])
        except (*UNREADABLE, IndexError) as error:
            answer: Joined | Refused = Refused(f"this is not how a host joins: {error}")
        else:
            answer = self._taken(join)
        self._socket.send([parts[0], _encoder.encode(answer)])

    def _taken(self, join: Join) -> Joined | Refused:
        ranks = sorted(join.addresses)
        if join.version != self._version:
            return Refused(f"it runs jengine {join.version}, and the front {self._version}")
        with self._changed:
            strange = [rank for rank in ranks if rank not in self._ranks]
            twice = [rank for rank in ranks if rank in self._addresses]
            if strange or not ranks:
                return Refused(f"ranks {ranks}: expected some of {list(self._ranks)}")
            if twice:
                return Refused(f"ranks {twice} have joined already")
            self._addresses.update(join.addresses)
            self._changed.notify_all()
        logger.info("Data-parallel ranks %s have joined.", ranks)
        return Joined()


class JoinedHost:
    """The end of a host whose cores join."""

    def __init__(self, host: str, port: int, secret: bytes, left: Callable[[str], None]) -> None:
        """`left` is told when the connection has ended after the answer."""
        self.address = tcp(host, port)
        self._left = left
        self._answered = threading.Event()
        self._answer: Joined | Refused | None = None
        self._socket = SocketLoop(
            zmq.DEALER, self.address,
            receive=self._receive, failed=self._failed, lost=self._lost, secret=secret,
        )  # fmt: skip
        self._socket.start()

    def join(self, addresses: Mapping[int, str], version: str, seconds: float) -> None:
        """Offer cores by rank; return when they are replicas. ConfigError if they are refused."""
        self._socket.send([_encoder.encode(Join(dict(addresses), version))])
        if not self._answered.wait(seconds):
            raise ConfigError(
                f"nobody has answered at {self.address} within {seconds:g} s. Is the front started "
                "with this --data-parallel-address and --data-parallel-rpc-port?"
            )
        match self._answer:
            case Refused(why):
                raise ConfigError(f"the front at {self.address} refused this host: {why}.")
            case None:
                raise ConfigError(
                    f"the front at {self.address} has closed the connection. Is the secret the "
                    "same on both hosts?"
                )

    def close(self) -> None:
        """Leave."""
        self._socket.close()

    def _receive(self, parts: Parts) -> None:
        self._answer = _from_desk.decode(parts[0])
        self._answered.set()

    def _lost(self) -> None:
        self._end(f"the front at {self.address} has gone")

    def _failed(self, error: BaseException) -> None:
        self._end(f"the connection to {self.address} has failed: {error}")

    def _end(self, why: str) -> None:
        if self._answered.is_set():
            self._left(why)
        self._answered.set()  # without an answer `join` says that there is none
