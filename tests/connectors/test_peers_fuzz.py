"""What peers that know the secret may send: anything. Neither side ends, waits or keeps it."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator

import hypothesis.strategies as st
import msgspec
import pytest
import zmq
from hypothesis import given, settings

from jengine.connectors import peers
from jengine.connectors.peers import BlockQuestion, PeerStore
from jengine.wire import question_sockets as wire
from jengine.wire.doors import Door
from jengine.wire.question_sockets import Envelope, Header, answer_frames
from tests.connectors.test_peers import KEY, OTHER, SECRET, free_port, source_of
from tests.connectors.test_peers import settings as peer_settings

DATA = b"block"
BYTES = st.binary(max_size=200)
FRAMES = st.lists(BYTES, max_size=3)
LONGEST = 60.0


@pytest.fixture(scope="module")
def stores() -> Iterator[tuple[PeerStore, PeerStore]]:
    """A producer that has a block, and a consumer."""
    with (
        contextlib.closing(PeerStore(peer_settings(), "model")) as producer,
        contextlib.closing(PeerStore(peer_settings(serves=False), "model")) as consumer,
    ):
        producer.write(KEY, DATA)
        yield producer, consumer


@contextlib.contextmanager
def asking(producer: PeerStore) -> Iterator[zmq.Socket[bytes]]:
    """A socket of a consumer that knows the secret, and may send anything."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        Door(source_of(producer), SECRET).connect(socket)
        yield socket


# Questions that are nearly right, beside those that are not.
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=9),
    BYTES,
)  # fmt: skip
NEARLY = st.lists(SCALARS, max_size=6).map(msgspec.msgpack.encode)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.one_of(FRAMES, NEARLY.map(lambda one: [one])), max_size=8))
def test_a_producer_answers_whatever_else_it_is_asked(
    stores: tuple[PeerStore, PeerStore], messages: list[list[bytes]]
) -> None:
    producer, consumer = stores
    with asking(producer) as socket:
        for frames in messages:
            if frames:
                socket.send_multipart(frames)
        assert consumer.read(KEY, source_of(producer)) == DATA


def test_questions_that_wait_are_bounded_in_number_and_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "MOST_WAITING", 10)
    monkeypatch.setattr(wire, "MOST_SECONDS", 0.5)
    with (
        contextlib.closing(PeerStore(peer_settings(), "model")) as producer,
        asking(producer) as socket,
    ):
        producer.write(KEY, DATA)
        for number in range(50):
            seconds = (math.inf, 1e300, 9.0, math.nan)[number % 4]
            socket.send(question(number, OTHER, seconds))
        answered = [answer_to(socket) for _ in range(50)]
        assert {header.number for header, _ in answered} == set(range(50))
        assert all(header.problem == wire.ABSENT for header, _ in answered)
        socket.send(asked := question(99, KEY))
        head, data = answer_frames(msgspec.msgpack.decode(asked, type=Envelope), DATA)
        assert answer_to(socket) == (msgspec.msgpack.decode(head, type=Header), [data])


def question(number: int, key: bytes, seconds: float = 0.0) -> bytes:
    content = msgspec.msgpack.encode(BlockQuestion("model", key))
    return msgspec.msgpack.encode(Envelope(number, seconds, content))


def answer_to(socket: zmq.Socket[bytes]) -> tuple[Header, list[bytes]]:
    assert socket.poll(int(LONGEST * 1000)), "a question got no answer"
    head, *data = socket.recv_multipart()
    return msgspec.msgpack.decode(head, type=Header), data


def test_a_question_that_is_too_long_ends_its_connection_alone(
    stores: tuple[PeerStore, PeerStore],
) -> None:
    producer, consumer = stores
    with asking(producer) as socket:
        socket.send(b"x" * (wire.MOST_QUESTION + 1))
        assert consumer.read(KEY, source_of(producer)) == DATA


def test_a_consumer_that_reads_nothing_holds_up_no_other() -> None:
    with (
        contextlib.closing(PeerStore(peer_settings(most_bytes=2**24), "model")) as producer,
        contextlib.closing(PeerStore(peer_settings(serves=False), "model")) as consumer,
        asking(producer) as socket,
    ):
        producer.write(KEY, b"x" * 2**20)
        socket.setsockopt(zmq.RCVHWM, 1)
        for number in range(500):
            socket.send(question(number, KEY))
        for _ in range(3):
            assert consumer.read(KEY, source_of(producer)) == b"x" * 2**20


Answer = Callable[[Envelope], list[bytes]]


@contextlib.contextmanager
def lying(answer: Answer) -> Iterator[str]:
    """The address of a producer that answers what it likes."""
    address, ended = f"tcp://127.0.0.1:{free_port()}", threading.Event()

    def serve() -> None:
        with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            Door(address, SECRET).bind(socket)
            while not ended.is_set():
                if socket.poll(10):
                    sender, frame = socket.recv_multipart()
                    asked = msgspec.msgpack.decode(frame, type=Envelope)
                    socket.send_multipart([sender, *answer(asked)])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield address
    finally:
        ended.set()
        thread.join()


def right(asked: Envelope) -> list[bytes]:
    return [bytes(part) for part in answer_frames(asked, DATA)]


WRONG: list[Answer] = [
    lambda asked: [b""],
    lambda asked: [b"\xc1", DATA],
    lambda asked: [msgspec.msgpack.encode([asked.number, "yes", 5]), DATA],
    lambda asked: right(asked)[:1],
    lambda asked: [*right(asked), b"more"],
    lambda asked: [right(asked)[0], DATA[:-1]],
    lambda asked: [right(asked)[0], b"other"],
    lambda asked: [msgspec.msgpack.encode(Header(asked.number)), DATA],
    lambda asked: right(msgspec.structs.replace(asked, number=asked.number - 1)),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_answers_that_are_wrong_are_misses_and_the_next_is_read(wrong: Answer) -> None:
    answers = [wrong, right]
    with (
        lying(lambda asked: answers.pop(0)(asked)) as address,
        contextlib.closing(PeerStore(peer_settings(serves=False), "model")) as consumer,
    ):
        assert consumer.read(KEY, address) is None
        assert consumer.read(KEY, address) == DATA


@settings(deadline=None, max_examples=30)
@given(st.lists(st.one_of(FRAMES.filter(bool), NEARLY.map(lambda one: [one])), max_size=4))
def test_a_consumer_takes_nothing_but_the_content(messages: list[list[bytes]]) -> None:
    answers: list[Answer] = [lambda _, frames=frames: frames for frames in messages]
    answers.append(right)
    with (
        lying(lambda asked: answers.pop(0)(asked)) as address,
        contextlib.closing(PeerStore(peer_settings(serves=False), "model")) as consumer,
    ):
        assert [consumer.read(KEY, address) for _ in messages] == [None] * len(messages)
        assert consumer.read(KEY, address) == DATA


def test_producers_that_do_not_answer_are_not_remembered_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "SILENCE", 0.02)
    with contextlib.closing(
        PeerStore(peer_settings(serves=False, seconds=0.01), "model")
    ) as consumer:
        for number in range(20):
            assert consumer.read(KEY, f"tcp://127.0.0.1:{number + 1}") is None
            time.sleep(0.01)  # it is over for some of them
        assert len(consumer._silent) < 10
