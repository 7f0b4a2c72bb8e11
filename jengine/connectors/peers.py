"""A connector between engines: one computes prompts, another fetches their blocks from it over ZMQ.

A producer keeps what it has saved in memory, up to a limit, and serves it by content key. What a
request's `kv_transfer_params` say of the producer is where a consumer asks. Frames are a msgpack
header and the raw block; both sides know one secret, from which the sockets' keys follow. Each
process of a producer serves its piece of blocks, and those of a consumer ask for theirs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import zmq

from jengine.config import WHOLE_BLOCKS
from jengine.connectors.curve import as_client, as_server, tcp
from jengine.connectors.peer_addresses import address_in, said_of, source_of
from jengine.connectors.settings import PeerSettings
from jengine.errors import ConfigError
from jengine.request import WireRequest

logger = logging.getLogger(__name__)
# Milliseconds between two looks at what has been saved, while somebody waits for it.
GLANCE = 5
# Seconds in which a producer that did not answer is not asked again.
SILENCE = 10.0
MOST_QUESTION = 64 * 2**10  # bytes
MOST_ANSWER = 2**31
# Of questions: how many wait for contents at a time, and how long one may.
MOST_WAITING, MOST_SECONDS = 4096, 600.0
MOST_AT_ONCE = 256  # questions taken before those that wait are looked at
# Answers that wait for a consumer which does not read them; later ones are dropped.
MOST_UNREAD = 64
MOST_LOST = 100_000  # contents that could not be had, which are remembered


class Question(msgspec.Struct, frozen=True, array_like=True):
    """A consumer asks for a content, which may still be on its way to the producer's memory."""

    number: int
    namespace: str
    key: bytes
    seconds: float  # that it waits


class Header(msgspec.Struct, frozen=True, array_like=True):
    """The producer answers; the block follows if it was found."""

    number: int
    found: bool
    checksum: bytes = b""


class PeerIndex:
    """The scheduler's half: what requests say of other engines."""

    def __init__(self, settings: PeerSettings, pieces: Sequence[str] = WHOLE_BLOCKS) -> None:
        """`pieces` of blocks are what this engine's processes have, in their order."""
        self._settings = settings
        self._pieces = pieces
        self._lost: OrderedDict[tuple[bytes, str], None] = OrderedDict()

    def source(self, wire: WireRequest) -> str | None:
        """The producer of this request's blocks."""
        said = wire.kv_transfer or {}
        if not said.get("do_remote_prefill"):
            return None
        return source_of(said, self._pieces, self._settings.peers)

    def holds(self, key: bytes, source: str) -> bool:
        """Whether the producer may have a content: it is asked only when it is fetched."""
        return bool(source) and (key, source) not in self._lost

    def lost(self, key: bytes, source: str) -> None:
        """The producer does not have it."""
        self._lost[key, source] = None
        if len(self._lost) > MOST_LOST:
            self._lost.popitem(last=False)

    def forget(self, key: bytes) -> None:
        """What this engine has served before cannot be taken back."""

    def finished(self, wire: WireRequest, num_tokens: int) -> Mapping[str, Any]:
        """Where a consumer finds the blocks of a prompt that was computed for it."""
        own = self._settings
        if not own.serves or not (wire.kv_transfer or {}).get("do_remote_decode"):
            return {}
        return {
            "do_remote_prefill": True, "do_remote_decode": False,
            "remote_engine_id": own.engine_id, "remote_request_id": wire.request_id,
            **said_of(own, self._pieces), "remote_num_tokens": num_tokens,
        }  # fmt: skip

    def reset(self) -> None:
        """Requests say anew where their blocks are."""
        self._lost.clear()


class PeerStore:
    """The worker's half: serves what was saved, and fetches from others."""

    def __init__(self, settings: PeerSettings, namespace: str, piece: str = "") -> None:
        self._settings = settings
        self._namespace = namespace + piece
        self._piece = piece
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._total = 0
        self._lock = threading.Lock()
        self._context = zmq.Context()
        self._sockets = threading.local()
        self._numbers = 0
        self._ended = threading.Event()
        self._silent: dict[str, float] = {}  # producer -> until when it is not asked
        self._server: threading.Thread | None = None
        if settings.serves:
            self._server = self._serving()

    def read(self, key: bytes, source: str) -> bytes | None:
        """Fetch a content from a producer; None if it has not got it, or does not answer."""
        place = address_in(source, self._piece)
        if place is None or time.monotonic() < self._silent.get(place, 0.0):
            return None
        socket = self._socket(place)
        with self._lock:
            self._numbers += 1
            number = self._numbers
        seconds = self._settings.seconds
        socket.send(msgspec.msgpack.encode(Question(number, self._namespace, key, seconds / 2)))
        if not socket.poll(int(seconds * 1000)):
            self._drop(place)
            self._silence(place)
            logger.warning("%s does not answer; its blocks are computed again.", place)
            return None
        head, *data = socket.recv_multipart()
        try:
            header = msgspec.msgpack.decode(head, type=Header)
        except (ValueError, msgspec.MsgspecError):
            header = None
        if header is None or header.number != number:
            self._drop(place)  # it answers no question, or one that was given up
            return None
        if not header.found or len(data) != 1 or header.checksum != checksum(key, data[0]):
            return None
        return data[0]

    def write(self, key: bytes, data: bytes) -> None:
        """Keep a content for consumers."""
        if not self._settings.serves:
            return
        with self._lock:
            self._total += len(data) - len(self._kept.pop(key, b""))
            self._kept[key] = data
            while self._total > self._settings.most_bytes:
                self._total -= len(self._kept.popitem(last=False)[1])

    def close(self) -> None:
        """Serve nobody any more."""
        self._ended.set()
        if self._server is not None:
            self._server.join()
        self._context.destroy(linger=0)

    def _socket(self, source: str) -> zmq.Socket[bytes]:
        """This thread's socket to a producer."""
        known: dict[str, zmq.Socket[bytes]] | None = getattr(self._sockets, "known", None)
        if known is None:
            known = self._sockets.known = {}
        if source not in known:
            socket = known[source] = self._context.socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.MAXMSGSIZE, MOST_ANSWER)
            as_client(socket, source, self._settings.secret)
            socket.connect(source)
        return known[source]

    def _silence(self, place: str) -> None:
        """Do not ask a producer for a while. Requests may name any number of them."""
        now = time.monotonic()
        with self._lock:
            self._silent = {one: until for one, until in self._silent.items() if until > now}
            self._silent[place] = now + SILENCE

    def _drop(self, source: str) -> None:
        self._sockets.known.pop(source).close(linger=0)

    def _serving(self) -> threading.Thread:
        own = self._settings
        address = tcp(own.host, own.port)
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MOST_QUESTION)
        socket.setsockopt(zmq.SNDHWM, MOST_UNREAD)
        as_server(socket, address, own.secret)
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            socket.close()
            raise ConfigError(
                f"kv_transfer_config: {address} cannot be listened at ({error}). Give this engine "
                "an address of its host and a kv_port of its own."
            ) from error
        thread = threading.Thread(target=self._serve, args=(socket,), daemon=True, name="kv-serve")
        thread.start()
        return thread

    def _serve(self, socket: zmq.Socket[bytes]) -> None:
        waiting: list[tuple[float, bytes, Question]] = []
        while not self._ended.is_set():
            if socket.poll(GLANCE if waiting else 100):
                waiting += self._questions(socket, MOST_WAITING - len(waiting))
            waiting = [one for one in waiting if not self._answered(socket, *one)]
        socket.close()

    def _questions(
        self, socket: zmq.Socket[bytes], most_waiting: int
    ) -> list[tuple[float, bytes, Question]]:
        """The questions that have come, and until when each may wait: so many, others do not."""
        found: list[tuple[float, bytes, Question]] = []
        for _ in range(MOST_AT_ONCE):
            if not socket.poll(0):
                break
            sender, *frames = socket.recv_multipart()
            try:
                (frame,) = frames
                asked = msgspec.msgpack.decode(frame, type=Question)
            except (ValueError, msgspec.MsgspecError):
                continue  # no question: it gets no answer
            seconds = min(asked.seconds, MOST_SECONDS) if len(found) < most_waiting else 0.0
            found.append((time.monotonic() + seconds, sender, asked))
        return found

    def _answered(
        self, socket: zmq.Socket[bytes], until: float, sender: bytes, asked: Question
    ) -> bool:
        """Answer, unless the content may still come."""
        ours = asked.namespace == self._namespace
        with self._lock:
            data = self._kept.get(asked.key) if ours else None
            if data is not None:
                self._kept.move_to_end(asked.key)
        if data is None and ours and time.monotonic() < until:
            return False
        if data is None:
            frames = [msgspec.msgpack.encode(Header(asked.number, False))]
        else:
            header = Header(asked.number, True, checksum(asked.key, data))
            frames = [msgspec.msgpack.encode(header), data]
        socket.send_multipart([sender, *frames], copy=False)
        return True


def checksum(key: bytes, data: bytes) -> bytes:
    """The checksum of a content under its name."""
    return blake2b(key + data, digest_size=16).digest()
