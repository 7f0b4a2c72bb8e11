"""KV connector between engines, for disaggregated prefill: a consumer fetches blocks from the
engine that computed them, over ZMQ.

A producer keeps saved blocks in memory, up to a limit, and serves them by content key
(`wire/question_sockets.py`). The request's `kv_transfer_params` give the consumer the producer's
address. Each process of a producer serves its shard of blocks, and each process of a consumer
fetches its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from jengine.config import WHOLE_BLOCKS
from jengine.connectors.settings import PeerSettings
from jengine.errors import RequestError
from jengine.request import WireRequest
from jengine.wire.doors import Door, listening, tcp
from jengine.wire.question_sockets import Answerer, Asker, NoAnswer, Refused, Silent

logger = logging.getLogger(__name__)
# Seconds for which a producer is not asked after a timeout.
SILENCE = 10.0
MOST_ANSWER = 2**31  # bytes
MOST_LOST = 100_000  # remembered failed fetches


class BlockQuestion(msgspec.Struct, frozen=True, array_like=True):
    """A consumer's request for a block, which the producer may not have saved yet."""

    namespace: str
    key: bytes


class PeerIndex:
    """The scheduler's half: reads producers' addresses from `kv_transfer_params`."""

    def __init__(self, settings: PeerSettings, pieces: Sequence[str] = WHOLE_BLOCKS) -> None:
        """`pieces`: name of each process's shard of a block, in order of processes."""
        self._settings = settings
        self._pieces = pieces
        self._lost: OrderedDict[tuple[bytes, str], None] = OrderedDict()

    def source(self, wire: WireRequest) -> str | None:
        """The addresses that the request's `kv_transfer_params` name, if any."""
        said = wire.kv_transfer or {}
        if not said.get("do_remote_prefill"):
            return None
        return source_of(said, self._pieces, self._settings.peers)

    def holds(self, key: bytes, source: str) -> bool:
        """Return True unless a fetch from this producer has failed: only the fetch asks it."""
        return bool(source) and (key, source) not in self._lost

    def lost(self, key: bytes, source: str) -> None:
        """Stop offering this block of this producer."""
        self._lost[key, source] = None
        if len(self._lost) > MOST_LOST:
            self._lost.popitem(last=False)

    def forget(self, key: bytes) -> None:
        """Do nothing: blocks that were served cannot be recalled."""

    def finished(self, wire: WireRequest, num_tokens: int) -> Mapping[str, Any]:
        """The `kv_transfer_params` with which a consumer fetches this prompt's blocks."""
        own = self._settings
        if not own.serves or not (wire.kv_transfer or {}).get("do_remote_decode"):
            return {}
        return {
            "do_remote_prefill": True, "do_remote_decode": False,
            "remote_engine_id": own.engine_id, "remote_request_id": wire.request_id,
            **said_of(own, self._pieces), "remote_num_tokens": num_tokens,
        }  # fmt: skip

    def reset(self) -> None:
        """Forget failed fetches; each request names its producer anew."""
        self._lost.clear()


class PeerStore:
    """The worker's half: serves saved blocks and fetches from other engines."""

    def __init__(self, settings: PeerSettings, namespace: str, piece: str = "") -> None:
        self._settings = settings
        self._namespace = namespace + piece
        self._piece = piece
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._total = 0
        self._lock = threading.Lock()
        self._asker = Asker(settings.secret, MOST_ANSWER)
        self._silent: dict[str, float] = {}  # producer -> time until which it is not asked
        self._answerer = self._serving() if settings.serves else None

    def read(self, key: bytes, source: str) -> memoryview | None:
        """Fetch a block from the producer; None if it lacks the block or does not answer."""
        place = address_in(source, self._piece)
        if place is None or time.monotonic() < self._silent.get(place, 0.0):
            return None
        seconds = self._settings.seconds
        try:
            return self._asker.ask(place, BlockQuestion(self._namespace, key), seconds, seconds / 2)
        except Silent:
            self._silence(place)
            logger.warning("%s does not answer; its blocks are computed again.", place)
        except (NoAnswer, Refused) as error:
            logger.debug("%s", error)
        return None

    def write(self, key: bytes, data: bytes) -> None:
        """Keep a block in memory for consumers, evicting the oldest beyond the limit."""
        if not self._settings.serves:
            return
        with self._lock:
            self._total += len(data) - len(self._kept.pop(key, b""))
            self._kept[key] = data
            while self._total > self._settings.most_bytes:
                self._total -= len(self._kept.popitem(last=False)[1])

    def close(self) -> None:
        """Stop serving."""
        if self._answerer is not None:
            self._answerer.close()
        self._asker.close()

    def _silence(self, place: str) -> None:
        """Skip a producer for a while after it did not answer. Bounded, since requests may name any
        number of addresses."""
        now = time.monotonic()
        with self._lock:
            self._silent = {one: until for one, until in self._silent.items() if until > now}
            self._silent[place] = now + SILENCE

    def _serving(self) -> Answerer[BlockQuestion]:
        own = self._settings
        address = tcp(own.host, own.port)
        with listening(
            f"kv_transfer_config: {address} cannot be listened at",
            "Give this engine an address of its host and a kv_port of its own.",
        ):
            return Answerer(Door(address, own.secret), BlockQuestion, self._content)

    def _content(self, asked: BlockQuestion) -> bytes | None:
        if asked.namespace != self._namespace:
            raise RequestError(f"no blocks of {asked.namespace[:80]!r} are kept here.")
        with self._lock:
            data = self._kept.get(asked.key)
            if data is not None:
                self._kept.move_to_end(asked.key)
        return data


AT = "@"


def said_of(own: PeerSettings, pieces: Sequence[str]) -> dict[str, Any]:
    """The entries of `kv_transfer_params` that give consumers each process's address. `pieces`:
    name of each process's shard of a block, in order."""
    said: dict[str, Any] = {"remote_host": own.host, "remote_port": own.port}
    if any(pieces):
        places: dict[str, list[Any]] = {}
        for index, piece in enumerate(pieces):
            process = own.of_process(index)
            places.setdefault(piece, [process.host, process.port])
        said["remote_pieces"] = places
    return said


def source_of(
    said: Mapping[str, Any], pieces: Sequence[str], peers: Sequence[str] = ()
) -> str | None:
    """The source string by which this engine's processes, which need the shards `pieces`, fetch
    from the producer. None if a shard is missing or an address is not among `peers` (empty:
    any)."""
    places = said.get("remote_pieces")
    if places is None:
        places = {"": (said.get("remote_host"), said.get("remote_port"))}
    if not isinstance(places, Mapping):
        return None
    found = {piece: address(places.get(piece), peers) for piece in pieces}
    if not all(found.values()):
        return None
    if not any(pieces):
        return found[""]
    return " ".join(f"{piece}{AT}{place}" for piece, place in found.items())


def address(place: Any, peers: Sequence[str]) -> str | None:
    """Format host and port as an address; None if malformed or not among `peers`."""
    if not isinstance(place, (list, tuple)) or len(place) != 2:
        return None
    host, port = place
    if not isinstance(host, str) or not host or " " in host:
        return None
    if not isinstance(port, int) or not 0 < port < 2**16:
        return None
    return tcp(host, port) if not peers or f"{host}:{port}" in peers else None


def address_in(source: str, piece: str) -> str | None:
    """The address in `source` that serves this shard."""
    if not piece:
        return source
    named = dict(one.split(AT, 1) for one in source.split(" ") if AT in one)
    return named.get(piece)
