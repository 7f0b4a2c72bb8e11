"""Heads and bodies that are too large, endless or slow, on real sockets; others are served on."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from jengine.server.errors import ApiError
from jengine.server.http import body, patience
from jengine.server.http.limits import bounded
from tests.server.listening import Client, Listening, listening

MIB = 2**20
REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Listening]:
    with listening() as one:
        yield one


def resident() -> float:
    return psutil.Process().memory_info().rss / MIB


def sent(server: Listening, data: bytes, pieces: int = 1) -> int:
    """The status after sending this so many times; 0: the connection was closed."""
    client = Client(server.port)
    try:
        for _ in range(pieces):
            client.sock.sendall(data)
    except OSError:
        pass  # the server does not read on, and may have answered
    try:
        return client.status
    except OSError:
        return 0
    finally:
        client.leave()


def still_serves(server: Listening) -> bool:
    return any(serves(server) for _ in range(10))


def serves(server: Listening) -> bool:
    """False where this client itself was slower than the server waits in a test."""
    client = server.connect(prompt="a", max_tokens=1)
    try:
        return client.status == 200
    except ConnectionError:
        return False
    finally:
        client.leave()


def test_heads_that_are_too_large(server: Listening) -> None:
    before = resident()
    get = b"GET /health HTTP/1.1\r\nHost: x\r\n"
    assert sent(server, get + b"X: " + b"a" * (64 * 1024 + 1) + b"\r\n\r\n") in (0, 400, 431)
    assert sent(server, get + b"X: " + b"a" * (8 * MIB) + b"\r\n\r\n") in (0, 400, 431)
    many = b"".join(b"X-%d: a\r\n" % number for number in range(3000))
    assert sent(server, get + many + b"\r\n") == 431
    assert sent(server, get + b"X: a\r\n" * 99 + b"\r\n") == 200
    assert sent(server, get + b"X: a\r\n" * 101 + b"\r\n") == 431
    assert resident() - before < 40 and still_serves(server)


def test_bodies_that_are_too_large_are_refused_unread(server: Listening) -> None:
    before = resident()
    assert sent(server, REQUEST + b"Content-Length: %d\r\n\r\n" % (33 * MIB)) == 413
    assert sent(server, REQUEST + b"Content-Length: %d\r\n\r\n" % 10**18) in (400, 413)
    assert resident() - before < 10 and still_serves(server)


@pytest.mark.parametrize("chunked", [False, True])
def test_who_sends_a_body_that_is_too_large_to_its_end_reads_the_refusal(chunked: bool) -> None:
    with listening(max_body_bytes=4 * MIB) as server:
        before = resident()
        for _ in range(5):
            client = Client(server.port)
            if chunked:
                client.sock.sendall(REQUEST + b"Transfer-Encoding: chunked\r\n\r\n")
                for _ in range(12):
                    client.sock.sendall(b"100000\r\n" + b"a" * MIB + b"\r\n")
                client.sock.sendall(b"0\r\n\r\n")
            else:
                client.sock.sendall(REQUEST + b"Content-Length: %d\r\n\r\n" % (12 * MIB))
                client.sock.sendall(b"a" * (12 * MIB))
            assert client.status == 413
            client.leave()
        assert resident() - before < 40 and still_serves(server)


def test_a_whole_body_that_is_too_large_is_refused_at_once() -> None:
    """Its length is not said; after its last part nothing follows that could be dropped."""
    parts = [{"type": "http.request", "body": b"a" * 9, "more_body": False}]

    async def refused() -> None:
        with pytest.raises(ApiError, match="larger than 8 bytes"):
            await bounded(receive, 8)()

    async def receive() -> dict[str, Any]:
        return parts.pop()  # an IndexError the second time

    asyncio.run(refused())


def test_who_waits_before_it_sends_its_body_is_refused_at_once(server: Listening) -> None:
    head = REQUEST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % (33 * MIB)
    assert sent(server, head) == 413


def test_an_endless_body_ends_at_the_limit() -> None:
    with listening(max_body_bytes=4 * MIB) as server:
        before = resident()
        chunk = b"10000\r\n" + b"a" * 0x10000 + b"\r\n"
        client = Client(server.port)
        client.sock.sendall(REQUEST + b"Transfer-Encoding: chunked\r\n\r\n")
        count = 0
        try:
            for count in range(2000):  # 125 MiB, if somebody takes them  # noqa: B007
                client.sock.sendall(chunk)
        except OSError:
            pass
        assert client.status in (0, 413)
        client.leave()
        assert count < 1000 and resident() - before < 40
        assert still_serves(server)


def test_a_client_that_sends_its_head_slowly_is_given_up(
    server: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "HEAD_TIMEOUT", 0.3)
    clients = [Client(server.port) for _ in range(20)]
    gone = threading.Event()

    def drip() -> None:
        while not gone.is_set():
            for client in clients:
                try:
                    client.sock.sendall(b"G")
                except OSError:
                    gone.set()
            time.sleep(0.02)

    dripping = threading.Thread(target=drip)
    dripping.start()
    assert still_serves(server), "others are not held up"
    for client in clients:
        try:
            while client.sock.recv(100):
                pass
        except ConnectionError:
            pass
    gone.set()
    dripping.join()
    for client in clients:
        client.leave()


def test_a_body_that_comes_slowly_is_given_up(
    server: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "BODY_TIMEOUT", 0.2)
    client = Client(server.port)
    client.sock.sendall(REQUEST + b"Content-Length: 100\r\n\r\n{")
    assert still_serves(server), "others are not held up"
    assert client.status == 408
    assert b"did not arrive within 0.2 seconds" in client.read_until(b"}}")
    client.leave()


def test_a_reader_that_does_not_read_holds_up_nobody(server: Listening) -> None:
    lazy = Client(server.port)
    lazy.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    asked = {"prompt": "abc", "max_tokens": 300, "ignore_eos": True, "stream": True, "logprobs": 5}
    lazy.send("/v1/completions", asked)
    for _ in range(5):
        assert still_serves(server)
    lazy.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MIB)
    assert b"data: [DONE]" in lazy.read_until(b"data: [DONE]")
    lazy.leave()
    server.wait_until_idle()
