"""Events of blocks: what is in them, their frames, and those that are sent again."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from hashlib import sha256

import msgspec
import pytest
import zmq

from jengine.connectors import kv_events
from jengine.connectors.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    EventPublisher,
    EventSettings,
    event_settings,
    with_rank,
)
from jengine.errors import ConfigError
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.kvcache.event_log import EventLog, number_of, told_keys
from jengine.media_spans import MediaSpan
from tests.kvcache.cache_cases import FULL, admit, make_cache, make_request, recurrent, sliding


def tell(cache: CacheCoordinator, batches: list[list[Event]]) -> None:
    """Collect the events of a cache."""
    log = EventLog(cache.block_size, batches.append, cache.config.groups)
    cache.listeners.tell(log, lambda: None)


def test_a_requests_blocks_are_stored_and_removed() -> None:
    batches: list[list[Event]] = []
    cache = make_cache(blocks=4)
    tell(cache, batches)
    first = make_request([*range(9)], cache_salt="salt")
    assert admit(cache, first) == 0
    cache.step_ended(0)
    one, two = (number_of(content) for content in first.block_hashes[:2])
    stored = BlockStored(
        [one, two], None, [*range(8)], 4, None, "GPU", None, [("salt",), None], 0, "full_attention"
    )
    assert batches == [[stored]]
    cache.step_ended(1)
    cache.free(first)
    assert len(batches) == 1, "nothing has happened"
    second = make_request([7] * 9, "s")
    assert admit(cache, second) == 0
    cache.step_ended(2)
    removed = [event for event in batches[1] if isinstance(event, BlockRemoved)]
    assert {event.block_hashes[0] for event in removed} == {one, two}
    again = [event for event in batches[1] if isinstance(event, BlockStored)]
    assert [event.token_ids for event in again] == [[7] * 8]
    cache.free(second)
    assert cache.reset_prefix_cache()
    assert batches[2] == [AllBlocksCleared()]


def test_a_later_block_names_its_parent_and_each_group_is_told() -> None:
    batches: list[list[Event]] = []
    cache = make_cache(FULL, sliding(6), recurrent(4))
    tell(cache, batches)
    request = make_request([*range(12)])
    cache.allocate(request, 4)
    request.num_computed = 4
    cache.publish(request, 4)
    cache.allocate(request, 4)
    request.num_computed = 8
    cache.publish(request, 8)
    cache.step_ended(0)
    events = [event for event in batches[0] if isinstance(event, BlockStored)]
    assert [event.group_idx for event in events] == [0, 1, 0, 1]
    kinds = [(event.kv_cache_spec_kind, event.kv_cache_spec_sliding_window) for event in events]
    assert kinds == [("full_attention", None), ("sliding_window", 6)] * 2
    assert events[2].parent_block_hash == events[0].block_hashes[0] == events[3].parent_block_hash


def test_extra_keys_are_those_of_vllm_in_its_order() -> None:
    spans = [
        MediaSpan(offset, length, key, "image", (1, 1, 1), (1, 1, 1))
        for offset, length, key in ((3, 3, "cat"), (6, 2, "dog"))
    ]
    wire = make_request(
        [*range(9)], cache_salt="salt", adapter="d1", adapter_name="mine", media=spans
    ).wire
    assert told_keys(wire, 0, 4) == ("mine", ("cat", 3), "salt")
    assert told_keys(wire, 1, 4) == ("mine", ("cat", -1), ("dog", 2))
    assert told_keys(wire, 2, 4) == ("mine",)
    rows = make_request([1, 2], embeds=b"12345678").wire
    assert told_keys(rows, 0, 4) == (sha256(b"12345678").digest(),)


def test_an_adapter_is_told_by_the_name_that_its_user_gave() -> None:
    batches: list[list[Event]] = []
    cache = make_cache()
    tell(cache, batches)
    request = make_request([*range(5)], adapter="digest", adapter_name="mine", adapter_number=7)
    assert admit(cache, request) == 0
    cache.step_ended(0)
    (stored,) = batches[0]
    assert isinstance(stored, BlockStored)
    assert (stored.lora_name, stored.lora_id, stored.extra_keys) == ("mine", 7, [("mine",)])


def test_a_salt_that_is_no_valid_text_can_be_encoded() -> None:
    batches: list[list[Event]] = []
    cache = make_cache()
    tell(cache, batches)
    assert admit(cache, make_request([*range(5)], cache_salt="\ud800")) == 0
    cache.step_ended(0)
    assert msgspec.msgpack.encode(batches[0])


def free_address() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{one.getsockname()[1]}"


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    with zmq.Context() as made:
        yield made


class TheirBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    """A batch as routers written for vLLM declare it."""

    ts: float
    events: list[TheirStored | TheirRemoved | TheirCleared]
    data_parallel_rank: int | None = None


class TheirStored(msgspec.Struct, omit_defaults=True, tag="BlockStored"):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[object, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class TheirRemoved(msgspec.Struct, omit_defaults=True, tag="BlockRemoved"):
    block_hashes: list[int | bytes]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class TheirCleared(msgspec.Struct, omit_defaults=True, tag="AllBlocksCleared"):
    pass


EVENTS: list[Event] = [
    BlockStored([1, 2**64 - 1], 3, [4, 5], 1, 6, "GPU", "mine", [("mine", ("cat", -1)), None], 0,
                "sliding_window", 128),
    BlockStored([1], None, [4], 1, None, "GPU", None),
    BlockRemoved([1], "GPU", 0),
    AllBlocksCleared(),
]  # fmt: skip


def test_routers_written_for_vllm_read_every_event() -> None:
    data = msgspec.msgpack.encode(EventBatch(1.5, EVENTS, 2))
    read = msgspec.msgpack.decode(data, type=TheirBatch)
    assert (read.ts, read.data_parallel_rank) == (1.5, 2)
    assert [type(event).__name__ for event in read.events] == [
        "TheirStored", "TheirStored", "TheirRemoved", "TheirCleared",
    ]  # fmt: skip
    stored = read.events[0]
    assert isinstance(stored, TheirStored)
    assert (stored.block_hashes, stored.parent_block_hash) == ([1, 2**64 - 1], 3)
    assert (stored.token_ids, stored.block_size, stored.medium) == ([4, 5], 1, "GPU")
    assert (stored.lora_id, stored.lora_name) == (6, "mine")
    assert stored.extra_keys == [("mine", ["cat", -1]), None]
    assert (stored.group_idx, stored.kv_cache_spec_sliding_window) == (0, 128)
    assert msgspec.msgpack.encode(read) == data, "they write the same bytes"


def test_frames_and_what_is_sent_again(context: zmq.Context) -> None:
    replay = free_address()
    with context.socket(zmq.SUB) as subscriber:
        port = subscriber.bind_to_random_port("tcp://127.0.0.1")
        subscriber.subscribe("kv")
        settings = EventSettings(
            endpoint=f"tcp://127.0.0.1:{port}", replay_endpoint=replay, topic="kv"
        )
        publisher = EventPublisher(settings)
        removed = BlockRemoved([5], "GPU", 0)
        while not subscriber.poll(20):  # until it is connected
            publisher.publish([removed])
        topic, number, data = subscriber.recv_multipart()
        assert topic == b"kv" and len(number) == 8
        ts, events, rank = msgspec.msgpack.decode(data)
        assert ts > 0 and rank == 0
        assert events == [
            {"type": "BlockRemoved", "block_hashes": [5], "medium": "GPU", "group_idx": 0}
        ]
    publisher.publish([AllBlocksCleared()])
    with context.socket(zmq.DEALER) as asking:
        asking.connect(replay)
        asking.send_multipart((b"", b"no", b"question"))  # gets no answer
        for first in (0, int.from_bytes(number, "big")):
            asking.send_multipart((b"", first.to_bytes(8, "big")))
            found = list(answer_of(asking))
            assert [one for _, one, _ in found] == [
                at.to_bytes(8, "big") for at in range(first, first + len(found))
            ]
            assert {topic for topic, _, _ in found} == {b"kv"}
            assert [number, data] in [[one, content] for _, one, content in found]
        asking.send_multipart((b"", (2**63).to_bytes(8, "big")))
        assert list(answer_of(asking)) == [], "nothing is so late"
    publisher.close()


def answer_of(asking: zmq.Socket[bytes]) -> Iterator[list[bytes]]:
    """Topic, number and content of each batch that is sent again, until the mark of the end."""
    while True:
        assert asking.poll(60_000)
        empty, *frames = asking.recv_multipart()
        assert empty == b""
        if frames == [b"", b"\xff" * 8, b""]:
            return
        yield frames


def test_an_address_of_ipv6_is_listened_at(context: zmq.Context) -> None:
    port = free_address().rpartition(":")[2]
    publisher = EventPublisher(EventSettings(endpoint=f"tcp://[::]:{port}"))
    with context.socket(zmq.SUB) as subscriber:
        subscriber.subscribe("")
        subscriber.connect(f"tcp://127.0.0.1:{port}")
        until = time.monotonic() + 60
        while not subscriber.poll(20):
            assert time.monotonic() < until, "nothing is published there"
            publisher.publish([AllBlocksCleared()])
    publisher.close()


@pytest.mark.parametrize("given", [None, "tcp://127.0.0.1:{}", "tcp://*:{}"])
def test_prompts_are_published_to_this_host_unless_more_is_asked_for(
    given: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_address().rpartition(":")[2]
    monkeypatch.setattr(kv_events, "LOOPBACK", f"tcp://127.0.0.1:{port}")
    replay = None if given is None else given.format(port)
    settings = EventSettings(replay_endpoint=replay)
    if replay is not None:
        monkeypatch.setattr(kv_events, "LOOPBACK", free_address())
    publisher = EventPublisher(settings)
    everywhere = given is not None and "*" in given
    with socket.socket() as taken, pytest.raises(OSError, match="in use"):
        taken.bind(("127.0.0.1", int(port)))
    with socket.socket() as other:
        if everywhere:
            with pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.2", int(port)))
        else:
            other.bind(("127.0.0.2", int(port)))
    publisher.close()
    assert ("is told the tokens of all prompts" in caplog.text) == everywhere


@pytest.mark.parametrize("key", ["buffer_steps", "hwm", "max_queue_size"])
def test_numbers_below_zero_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"kv_events_config: .*>= 0.*{key}"):
        event_settings({"enable_kv_cache_events": True, key: -1})


def test_a_publisher_that_is_not_enabled_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert event_settings({"publisher": "zmq"}) is None
    assert "enable_kv_cache_events is not true" in caplog.text


def test_settings_are_checked_and_ranks_have_ports_of_their_own() -> None:
    assert event_settings(None) is None
    assert event_settings({"enable_kv_cache_events": False, "topic": "x"}) is None
    assert event_settings({"enable_kv_cache_events": True, "publisher": "null"}) is None
    found = event_settings({"enable_kv_cache_events": True, "topic": "x"})
    assert found == EventSettings(topic="x")
    with pytest.raises(ConfigError, match="no key 'endpont'"):
        event_settings({"endpont": "tcp://*:1"})
    with pytest.raises(ConfigError, match="publisher 'zmq' or 'null'"):
        event_settings({"enable_kv_cache_events": True, "publisher": "kafka"})
    with pytest.raises(ConfigError, match="kv_events_config"):
        event_settings({"enable_kv_cache_events": True, "hwm": "many"})
    assert with_rank("tcp://*:5557", 2) == "tcp://*:5559"
    assert with_rank("inproc://cache", 1) == "inproc://cache_dp1"
    assert with_rank("ipc:///run/events", 1) == "ipc:///run/events_dp1"
