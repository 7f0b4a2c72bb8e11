"""Events of blocks: what is in them, their frames, and those that are sent again."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import msgspec
import pytest
import zmq

from jengine.connectors.kv_events import (
    END,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventPublisher,
    EventSettings,
    event_settings,
    with_rank,
)
from jengine.errors import ConfigError
from jengine.kvcache.event_log import EventLog, number_of
from tests.kvcache.cache_cases import FULL, admit, make_cache, make_request, recurrent, sliding


def test_a_requests_blocks_are_stored_and_removed() -> None:
    batches: list[list[Event]] = []
    cache = make_cache(blocks=4)
    cache.listeners.tell(EventLog(4, batches.append), lambda: None)
    first = make_request([*range(9)], cache_salt="salt")
    assert admit(cache, first) == 0
    cache.step_ended(0)
    one, two = (number_of(content) for content in first.block_hashes[:2])
    stored = BlockStored([one, two], None, [*range(8)], 4, None, "GPU", None, [("salt",), None], 0)
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
    cache.listeners.tell(EventLog(4, batches.append), lambda: None)
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
    assert events[2].parent_block_hash == events[0].block_hashes[0] == events[3].parent_block_hash


def free_address() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{one.getsockname()[1]}"


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    with zmq.Context() as made:
        yield made


def test_frames_and_what_is_sent_again(context: zmq.Context) -> None:
    replay = free_address()
    with context.socket(zmq.SUB) as subscriber:
        port = subscriber.bind_to_random_port("tcp://127.0.0.1")
        subscriber.subscribe("kv")
        settings = EventSettings(
            endpoint=f"tcp://127.0.0.1:{port}", replay_endpoint=replay, topic="kv"
        )
        publisher = EventPublisher(settings, rank=0)
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
    with context.socket(zmq.REQ) as asking:
        asking.connect(replay)
        asking.send((0).to_bytes(8, "big"))
        assert asking.poll(60_000)
        first = asking.recv_multipart()
        assert first[0] == b"kv" and int.from_bytes(first[1], "big") == 0
    publisher.close()
    assert END == b"\xff" * 8


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
