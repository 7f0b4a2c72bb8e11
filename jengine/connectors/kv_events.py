"""Publishes KV cache events, as vLLM does, for external routers that route by cached prefix.

In: events. Out: msgpack batches over a ZMQ PUB socket as `topic, number, batch`; the last ones are
sent again on request at the replay address. Structs and frames are vLLM's.

With `kv_events_config` each committed step publishes one batch of `BlockStored`, `BlockRemoved` and
`AllBlocksCleared` (`kvcache/event_log.py`). Not published: states of recurrent layers, and blocks
in host memory or connectors. Hashes are the last 64 bits of jengine's own. Each data-parallel rank
has its own ports (`assembly/processes/deployment.py`).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Mapping
from itertools import count
from typing import Annotated, Any

import msgspec
import zmq

from jengine.connectors.settings import known_keys
from jengine.errors import ConfigError
from jengine.wire.doors import Door, listening

logger = logging.getLogger(__name__)
RANK = "data_parallel_rank"
KEYS = {
    "enable_kv_cache_events": "whether events are published",
    "publisher": "zmq, or null for none",
    "endpoint": "address of the PUB socket; by default tcp://127.0.0.1:5557, where others listen "
    "to with tcp://*:5557",
    "replay_endpoint": "address at which missed batches are sent again",
    "buffer_steps": "batches that are kept for that",
    "hwm": "messages that may wait for one subscriber",
    "max_queue_size": "batches that may wait to be published",
    "topic": "topic of every batch",
    RANK: "number of this engine among data-parallel ones, which is added to its ports",
}
LOOPBACK = "tcp://127.0.0.1:5557"
ONE_HOST = ("tcp://127.", "tcp://localhost:", "tcp://[::1]:")
END = (-1).to_bytes(8, "big", signed=True)
AtLeast0 = Annotated[int, msgspec.Meta(ge=0)]
# Poll interval of the replay socket, in seconds.
GLANCE = 0.05


class BlockStored(msgspec.Struct, omit_defaults=True, tag=True, frozen=True):
    """Consecutive blocks of one request entered the prefix cache."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(msgspec.Struct, omit_defaults=True, tag=True, frozen=True):
    """Blocks were evicted from the prefix cache."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, omit_defaults=True, tag=True, frozen=True):
    """The prefix cache was cleared."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, frozen=True):
    """Events of one committed step."""

    ts: float
    events: list[Event]
    data_parallel_rank: int | None = None


class EventSettings(msgspec.Struct, frozen=True, kw_only=True):
    """ZMQ endpoints and limits of event publishing."""

    endpoint: str | None = None  # None: a port on the loopback interface
    replay_endpoint: str | None = None
    buffer_steps: AtLeast0 = 10_000
    hwm: AtLeast0 = 100_000
    max_queue_size: AtLeast0 = 100_000
    topic: str = ""
    data_parallel_rank: AtLeast0 = 0


def event_settings(given: Mapping[str, Any] | None) -> EventSettings | None:
    """Parse `kv_events_config`; None if events are not published."""
    if not given:
        return None
    known_keys("kv_events_config", given, KEYS)
    enabled = given.get("enable_kv_cache_events", False)
    publisher = given.get("publisher") or ("zmq" if enabled else "null")
    if publisher not in ("zmq", "null") or not isinstance(enabled, bool):
        raise ConfigError(
            f"kv_events_config={dict(given)!r}: expected enable_kv_cache_events true or false, and "
            "publisher 'zmq' or 'null'."
        )
    if not enabled and publisher == "zmq":
        logger.warning(
            "kv_events_config: no events are published, as enable_kv_cache_events is not true."
        )
    if not enabled or publisher == "null":
        return None
    names = EventSettings.__struct_fields__
    try:
        return msgspec.convert(
            {name: value for name, value in given.items() if name in names}, EventSettings
        )
    except msgspec.ValidationError as error:
        raise ConfigError(f"kv_events_config: {error}.") from error


def with_rank(endpoint: str, rank: int) -> str:
    """Endpoint of a data-parallel rank: its port is offset by the rank, a local name gets a
    suffix."""
    if not rank:
        return endpoint
    if endpoint.startswith(("inproc:", "ipc:")):
        return f"{endpoint}_dp{rank}"
    base, _, port = endpoint.rpartition(":")
    return f"{base}:{int(port) + rank}" if port.isdecimal() and int(port) else endpoint


class EventPublisher:
    """Publishes batches in order, from a separate thread."""

    def __init__(self, settings: EventSettings, replica: int = 0) -> None:
        """`replica`: index of the replica in this process."""
        self._settings = settings
        self._rank = rank = settings.data_parallel_rank + replica
        self._queue: queue.Queue[EventBatch | None] = queue.Queue(settings.max_queue_size)
        self._sent: deque[tuple[bytes, bytes]] = deque(maxlen=settings.buffer_steps)
        self._topic = settings.topic.encode()
        self._context = zmq.Context()
        self._publisher = self._opened(zmq.PUB, with_rank(settings.endpoint or LOOPBACK, rank))
        self._replay = None
        if settings.replay_endpoint is not None:
            self._replay = self._opened(zmq.ROUTER, with_rank(settings.replay_endpoint, rank))
        self.dropped = 0  # batches dropped because the queue was full
        self._thread = threading.Thread(target=self._run, daemon=True, name="kv-events")
        self._thread.start()

    def publish(self, events: list[Event]) -> None:
        """Queue a batch without blocking; dropped if the queue is full."""
        try:
            self._queue.put_nowait(EventBatch(time.time(), events, self._rank))
        except queue.Full:
            self.dropped += 1
            if self.dropped == 1:
                logger.warning("KV events are dropped, as too many wait to be published.")

    def close(self) -> None:
        """Publish queued events and end the thread."""
        self._queue.put(None)
        self._thread.join()
        self._context.destroy(linger=200)

    def _opened(self, kind: int, endpoint: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(self._settings.hwm)
        everywhere = "*" in endpoint or "::" in endpoint
        is_own = everywhere or kind == zmq.ROUTER or self._settings.endpoint is None
        if is_own and endpoint.startswith("tcp:") and not endpoint.startswith(ONE_HOST):
            logger.warning(
                "kv_events_config: whoever reaches %s is told the tokens of all prompts.", endpoint
            )
        with listening(
            f"kv_events_config: {endpoint} cannot be used",
            "Give each engine an address of its own, such as 'tcp://*:5557'.",
        ):
            try:
                if is_own or not endpoint.startswith("tcp:"):
                    Door(endpoint).bind(socket)
                else:
                    Door(endpoint).connect(socket)
            except zmq.ZMQError:
                self._context.destroy(linger=0)
                raise
        logger.info(
            "KV events are %s at %s",
            "sent again" if kind == zmq.ROUTER else "published",
            socket.getsockopt_string(zmq.LAST_ENDPOINT),
        )
        return socket

    def _run(self) -> None:
        encoder, numbers = msgspec.msgpack.Encoder(), count()
        while True:
            if self._replay is not None and self._replay.poll(0):
                self._send_again(self._replay)
            try:
                batch = self._queue.get(timeout=GLANCE if self._replay is not None else None)
            except queue.Empty:
                continue
            if batch is None:
                return
            number, data = next(numbers).to_bytes(8, "big"), encoder.encode(batch)
            self._publisher.getsockopt(zmq.EVENTS)  # takes in subscriptions; sending may not
            self._publisher.send_multipart((self._topic, number, data))
            self._sent.append((number, data))

    def _send_again(self, socket: zmq.Socket[bytes]) -> None:
        sender, *frames = socket.recv_multipart()
        if len(frames) != 2:
            logger.warning("A question for KV events has %d frames; expected 3.", len(frames) + 1)
            return
        first = int.from_bytes(frames[1], "big")
        for number, data in self._sent:
            if int.from_bytes(number, "big") >= first:
                socket.send_multipart((sender, b"", self._topic, number, data))
        socket.send_multipart((sender, b"", b"", END, b""))
