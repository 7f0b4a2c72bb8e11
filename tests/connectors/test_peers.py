"""Blocks from one engine to another over ZMQ: found, waited for, missing, refused, bounded."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import zmq

from jengine.connectors import peers
from jengine.connectors.peers import PeerIndex, PeerStore
from jengine.connectors.settings import PeerSettings
from jengine.errors import ConfigError
from tests.scheduler.scheduler_loop import make_wire

KEY, OTHER = b"k" * 36, b"o" * 36
SECRET = b"a secret that both engines know"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def settings(**more: object) -> PeerSettings:
    usual = PeerSettings(
        host="127.0.0.1", port=free_port(), engine_id="producer", secret=SECRET, serves=True,
        most_bytes=1000, seconds=60.0,
    )  # fmt: skip
    return replace(usual, **more)


Opener = Callable[..., PeerStore]


@pytest.fixture
def opened() -> Iterator[Opener]:
    """Opens stores that are closed at the end, also of a test that fails."""
    with contextlib.ExitStack() as stores:

        def opened_store(
            where: PeerSettings, namespace: str = "model", piece: str = ""
        ) -> PeerStore:
            store = PeerStore(where, namespace, piece)
            return stores.enter_context(contextlib.closing(store))

        yield opened_store


@pytest.fixture
def producer(opened: Opener) -> PeerStore:
    return opened(settings())


@pytest.fixture
def consumer(opened: Opener) -> PeerStore:
    return opened(settings(serves=False))


def source_of(producer: PeerStore) -> str:
    return f"tcp://127.0.0.1:{producer._settings.port}"


def test_a_content_arrives_also_if_it_is_saved_only_then(
    producer: PeerStore, consumer: PeerStore
) -> None:
    producer.write(KEY, b"block")
    assert consumer.read(KEY, source_of(producer)) == b"block"
    threading.Timer(0.1, producer.write, (OTHER, b"later")).start()
    assert consumer.read(OTHER, source_of(producer)) == b"later"


def test_what_is_not_there_is_a_miss(producer: PeerStore, opened: Opener) -> None:
    quick = opened(settings(serves=False, seconds=0.4))
    other = opened(settings(serves=False, seconds=0.4), "another model")
    producer.write(OTHER, b"block")
    assert quick.read(KEY, source_of(producer)) is None
    assert other.read(OTHER, source_of(producer)) is None


def test_a_producer_that_does_not_answer_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, opened: Opener
) -> None:
    silent = opened(settings(serves=False, seconds=0.1))
    asked: list[str] = []
    socket_to = silent._asker._socket

    def counted(source: str) -> zmq.Socket[bytes]:
        asked.append(source)
        return socket_to(source)

    monkeypatch.setattr(silent._asker, "_socket", counted)
    monkeypatch.setattr(peers, "SILENCE", 600.0)
    first, second = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    assert silent.read(KEY, first) is None
    assert [silent.read(KEY, second) for _ in range(50)] == [None] * 50
    assert asked == [first, second]


def test_who_does_not_know_the_secret_gets_nothing(producer: PeerStore, opened: Opener) -> None:
    producer.write(KEY, b"block")
    stranger = opened(settings(serves=False, secret=b"another secret of 16", seconds=0.3))
    assert stranger.read(KEY, source_of(producer)) is None
    with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
        plain.setsockopt(zmq.LINGER, 0)
        plain.connect(source_of(producer))
        plain.send(b"\x94\x01\xa5model\xc4\x01k\xca\x00\x00\x00\x00")
        assert not plain.poll(200)


def test_what_is_kept_for_others_is_bounded(
    producer: PeerStore, consumer: PeerStore, opened: Opener
) -> None:
    for number in range(8):
        producer.write(bytes([number]) * 36, b"x" * 300)
    quick = opened(settings(serves=False, seconds=0.2))
    assert quick.read(bytes([0]) * 36, source_of(producer)) is None
    assert consumer.read(bytes([7]) * 36, source_of(producer)) == b"x" * 300


def test_an_address_in_use_is_refused(producer: PeerStore) -> None:
    with pytest.raises(ConfigError, match="kv_port of its own"):
        PeerStore(settings(port=producer._settings.port), "model")


def test_what_requests_and_answers_say() -> None:
    own = settings()
    index = PeerIndex(own)
    asked = make_wire(3, kv_transfer={"do_remote_decode": True})
    said = index.finished(asked, 9)
    assert said["remote_port"] == own.port and said["remote_num_tokens"] == 9
    assert said["do_remote_prefill"] and not said["do_remote_decode"]
    assert index.finished(make_wire(3), 9) == {}
    goes_on = make_wire(3, kv_transfer=dict(said))
    source = index.source(goes_on)
    assert source == f"tcp://127.0.0.1:{own.port}"
    assert index.holds(KEY, source)
    index.lost(KEY, source)
    assert not index.holds(KEY, source)
    assert index.source(make_wire(3)) is None
    assert index.source(make_wire(3, kv_transfer={**said, "remote_port": "1"})) is None
    fenced = PeerIndex(settings(peers=("10.0.0.1:5",)))
    assert fenced.source(goes_on) is None


LEFT_RIGHT = ("-left", "-right")


def test_each_process_is_asked_for_its_piece(opened: Opener) -> None:
    own = settings(port=two_free_ports())
    said = PeerIndex(own, LEFT_RIGHT).finished(
        make_wire(3, kv_transfer={"do_remote_decode": True}), 9
    )
    goes_on = make_wire(3, kv_transfer=dict(said))
    source = PeerIndex(settings(), LEFT_RIGHT).source(goes_on)
    assert source is not None
    for index, (piece, data) in enumerate(zip(LEFT_RIGHT, (b"le", b"ft"), strict=True)):
        opened(own.of_process(index), piece=piece).write(KEY, data)
    consumer = settings(serves=False, seconds=0.4)
    left, right = (opened(consumer, piece=piece) for piece in LEFT_RIGHT)
    assert (left.read(KEY, source), right.read(KEY, source)) == (b"le", b"ft")
    assert right.read(KEY, f"-left@tcp://127.0.0.1:{own.port}") is None
    astray = f"-right@tcp://127.0.0.1:{own.port}"
    assert right.read(KEY, astray) is None, "the left piece is there"
    # Nobody else has such pieces, and whole blocks are no pieces.
    assert PeerIndex(settings()).source(goes_on) is None
    assert PeerIndex(settings(), ("-left", "-other")).source(goes_on) is None
    whole = PeerIndex(own).finished(make_wire(3, kv_transfer={"do_remote_decode": True}), 9)
    assert PeerIndex(own, LEFT_RIGHT).source(make_wire(3, kv_transfer=dict(whole))) is None
    fenced = PeerIndex(settings(peers=(f"127.0.0.1:{own.port}",)), LEFT_RIGHT)
    assert fenced.source(goes_on) is None, "one of its processes may not be named"


def test_processes_with_whole_blocks_serve_any_engine() -> None:
    own = settings()
    said = PeerIndex(own, ("", "")).finished(
        make_wire(3, kv_transfer={"do_remote_decode": True}), 9
    )
    goes_on = make_wire(3, kv_transfer=dict(said))
    for pieces in (("",), ("", "", "")):
        assert PeerIndex(settings(), pieces).source(goes_on) == f"tcp://127.0.0.1:{own.port}"


@pytest.mark.parametrize(
    "places",
    [
        "text", [], {"-left": ["h", 1]}, {"-left": ["h", 1], "-right": ["h", 0]},
        {"-left": ["h", 1], "-right": "h1"}, {"-left": ["h", 1], "-right": ["a @tcp://b", 1]},
        {"-left": ["h", 1], "-right": [1, "h"]}, {"-left": ["h", 1], "-right": ["h", True, 2]},
    ],
)  # fmt: skip
def test_places_that_make_no_sense_are_none(places: object) -> None:
    said = {"do_remote_prefill": True, "remote_pieces": places}
    assert PeerIndex(settings(), LEFT_RIGHT).source(make_wire(3, kv_transfer=said)) is None


def two_free_ports() -> int:
    """The first of two neighbouring ports that were free a moment ago."""
    while True:
        first = free_port()
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", first + 1))
            return first
