"""Lets engine cores on other hosts join as data-parallel replicas, at one address of the front end.

In: the address, a secret, ranks. Out: the address at which each rank's core accepts front ends. The
connection stays open, so a joined host notices when the front end is gone. Must not know how cores
are started.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

import zmq

from jengine.engine.process.to_front import Progress
from jengine.errors import ConfigError, EngineDead
from jengine.wire.doors import Door, listening
from jengine.wire.message import BadFrame, Message, Reader, encode
from jengine.wire.socket_loop import Parts, SocketLoop

logger = logging.getLogger(__name__)
STAGE = "Joining cores of other hosts"
# How long a reconnecting host waits for its former connection to be dropped, and between attempts,
# in seconds.
COMING_AGAIN = 20.0
AGAIN = 0.5
# Seconds between log lines about missing ranks, and between checks while waiting for them.
REMIND = 30.0
LOOK = 1.0


class Join(Message, frozen=True):
    """Host to front end: these ranks' cores are ready."""

    addresses: dict[int, str]  # by rank
    version: str


class Joined(Message, frozen=True):
    """Front end to host: the ranks are replicas now."""


class JoinRefused(Message, frozen=True):
    """Front end to host: the ranks cannot join."""

    why: str


class Taken(JoinRefused, frozen=True, tag=True):
    """Refused because another connection, not yet known to be closed, holds these ranks."""


class AreYouThere(Message, frozen=True):
    """Keepalive without an answer: sending it reveals a closed connection."""


FromDesk = Joined | JoinRefused | Taken | AreYouThere
_from_host = Reader[Join](Join, "a host")
_from_desk = Reader[FromDesk](FromDesk, "the front")


class JoinDesk:
    """Front end's side: waits until every remote rank has joined, and accepts reconnecting
    hosts."""

    def __init__(self, door: Door, ranks: range, version: str) -> None:
        self._ranks = ranks
        self._version = version  # of jengine, the same on every host
        self._addresses: dict[int, str] = {}
        self._connections: dict[int, bytes] = {}  # by rank; open ones only
        self._back: Callable[[int, str], None] = lambda rank, address: None
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        host, port = door.place
        with listening(
            f"data_parallel_address={host!r}, data_parallel_rpc_port={port}: cannot listen there",
            "Give an address of this host and a port that is free.",
        ):
            self._socket = SocketLoop(
                zmq.ROUTER, door,
                receive=self._receive, failed=self._fail, unreachable=self._forget,
            )  # fmt: skip
        self._socket.start()

    @property
    def address(self) -> str:
        return self._socket.addresses[0]

    @property
    def missing(self) -> list[int]:
        return [rank for rank in self._ranks if rank not in self._addresses]

    def wait(
        self,
        tell: Callable[[Progress], None],
        seconds: float,
        check: Callable[[], None] = lambda: None,
    ) -> list[str]:
        """Return the addresses of all ranks, by rank. Raises ConfigError on timeout, EngineDead if
        the socket has failed.

        `check` is called periodically, and may raise to abort the wait.
        """
        end, reminded = time.monotonic() + seconds, -REMIND
        while True:
            with self._changed:
                missing = self.missing
                if self._failure is not None:
                    raise EngineDead(f"the port for other hosts has failed: {self._failure}.")
                if not missing:
                    return [self._addresses[rank] for rank in self._ranks]
            check()
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
                    min(end - now, LOOK),
                )

    def when_back(self, tell: Callable[[int, str], None]) -> None:
        """Register a non-blocking callback (rank, address) for ranks that have rejoined."""
        self._back = tell

    def close(self) -> None:
        """Close all connections, by which joined hosts notice that the front end is gone."""
        self._socket.close()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def _receive(self, parts: Parts) -> None:
        try:
            join = _from_host(parts[1])
        except (BadFrame, IndexError) as error:
            answer: Joined | JoinRefused = JoinRefused(f"this is not how a host joins: {error}")
        else:
            answer = self._joined(parts[0], join)
        self._socket.send([parts[0], encode(answer)])

    def _forget(self, connection: bytes) -> None:
        """A connection has closed: free its ranks."""
        ranks = [rank for rank, one in self._connections.items() if one == connection]
        for rank in ranks:
            del self._connections[rank]

    def _joined(self, connection: bytes, join: Join) -> Joined | JoinRefused | Taken:
        ranks = sorted(join.addresses)
        if join.version != self._version:
            return JoinRefused(f"it runs jengine {join.version}, and the front {self._version}")
        with self._changed:
            strange = [rank for rank in ranks if rank not in self._ranks]
            if strange or not ranks:
                return JoinRefused(f"ranks {ranks}: expected some of {list(self._ranks)}")
            twice = [rank for rank in ranks if rank in self._connections]
            for other in {self._connections[rank] for rank in twice}:
                self._socket.send([other, encode(AreYouThere())])
            if twice:
                return Taken(f"ranks {twice} have joined already")
            again = [rank for rank in ranks if rank in self._addresses]
            self._connections.update(dict.fromkeys(ranks, connection))
            self._addresses.update(join.addresses)
            self._changed.notify_all()
        logger.info("Data-parallel ranks %s have joined%s.", ranks, " again" if again else "")
        for rank in again:
            self._back(rank, join.addresses[rank])
        return Joined()


class JoinedHost:
    """Host's side: offers its cores to the front end, and notices its end."""

    def __init__(self, front: Door, left: Callable[[str], None]) -> None:
        """`left` is called with the reason when the connection ends after the host has joined."""
        self.address = front.address
        self._left = left
        self._answered = threading.Event()
        self._answer: Joined | JoinRefused | Taken | None = None
        self._socket = SocketLoop(
            zmq.DEALER, front,
            receive=self._receive, failed=self._failed, lost=self._lost,
        )  # fmt: skip
        self._socket.start()

    def join(self, addresses: Mapping[int, str], version: str, seconds: float) -> None:
        """Offer cores by rank, and return once they are replicas. Raises ConfigError if refused.

        Retries while the ranks are taken: the holder may be this host's own previous connection.
        """
        end = time.monotonic() + COMING_AGAIN
        self._offer(addresses, version, seconds)
        while isinstance(self._answer, Taken) and time.monotonic() < end:
            time.sleep(AGAIN)
            self._answer = None
            self._answered.clear()
            self._offer(addresses, version, seconds)
        match self._answer:
            case JoinRefused(why):
                raise ConfigError(f"the front at {self.address} refused this host: {why}.")
            case None:
                raise ConfigError(
                    f"the front at {self.address} has closed the connection. Is the secret the "
                    "same on both hosts?"
                )

    def _offer(self, addresses: Mapping[int, str], version: str, seconds: float) -> None:
        self._socket.send([encode(Join(dict(addresses), version))])
        if not self._answered.wait(seconds):
            raise ConfigError(
                f"nobody has answered at {self.address} within {seconds:g} s. Is the front started "
                "with this --data-parallel-address and --data-parallel-rpc-port?"
            )

    def close(self) -> None:
        self._socket.close()

    def _receive(self, parts: Parts) -> None:
        message = _from_desk(parts[0])
        if not isinstance(message, AreYouThere):
            self._answer = message
            self._answered.set()

    def _lost(self) -> None:
        self._end(f"the front at {self.address} has gone")

    def _failed(self, error: BaseException) -> None:
        self._end(f"the connection to {self.address} has failed: {error}")

    def _end(self, why: str) -> None:
        if self._answered.is_set():
            self._left(why)
        self._answered.set()  # wakes `join`, which reports that there was no answer
