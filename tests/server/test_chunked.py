"""Streams on the wire: chunks that HTTP defines, for clients of each version and of any speed."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator

import pytest

from jengine.server.http.chunked import offer, writer_of
from tests.server.listening import Client, Listening, listening

BODY = {"prompt": "abc", "max_tokens": 5, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def server() -> Iterator[Listening]:
    with listening() as one:
        yield one


def answered(server: Listening, version: str) -> tuple[bytes, bytes]:
    """Head and body of the response to a stream's request, up to the end of the connection."""
    data = json.dumps(BODY).encode()
    head = (
        f"POST /v1/completions HTTP/{version}\r\nHost: x\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    client = Client(server.port)
    client.sock.sendall(head.encode() + data)
    got = client.read_until(b"never")
    client.leave()
    first, _, body = got.partition(b"\r\n\r\n")
    return first.lower(), body


def unchunked(body: bytes) -> bytes:
    """The data in a chunked body, which must end as one."""
    parts = []
    while True:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        parts.append(rest[:length])
        assert rest[length : length + 2] == b"\r\n"
        body = rest[length + 2 :]
        if not length:
            assert body == b""
            return b"".join(parts)


def text_of(events: bytes) -> str:
    lines = events.removesuffix(b"data: [DONE]\n\n").split(b"\n\n")
    chunks = [json.loads(line.removeprefix(b"data: ")) for line in lines if line]
    return "".join(chunk["choices"][0]["text"] for chunk in chunks)


def test_a_stream_has_chunks_where_the_client_knows_them(server: Listening) -> None:
    new, chunked = answered(server, "1.1")
    old, plain = answered(server, "1.0")
    assert b"transfer-encoding: chunked" in new and b"transfer-encoding" not in old
    events = unchunked(chunked)
    assert events.endswith(b"data: [DONE]\n\n") and plain.endswith(b"data: [DONE]\n\n")
    assert text_of(events) == text_of(plain) and len(text_of(plain)) >= 4


def test_a_connection_carries_a_stream_and_then_other_requests(server: Listening) -> None:
    client = Client(server.port)
    for _ in range(2):
        client.got = b""
        client.send("/v1/completions", BODY)
        assert b"data: [DONE]" in client.read_until(b"\r\n0\r\n\r\n")
    client.leave()


class Flow:
    """A client's speed, as a test sets it."""

    def __init__(self) -> None:
        self.write_paused = False
        self._reads = asyncio.Event()

    async def drain(self) -> None:
        await self._reads.wait()

    def read(self) -> None:
        self.write_paused = False
        self._reads.set()


def test_a_part_waits_for_a_client_that_reads_slowly() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
        flow, writer_scope = Flow(), {"http_version": "1.1", "extensions": {"other": 1}}
        offer(writer_scope, transport, flow)
        assert writer_scope["extensions"]["other"] == 1
        write = writer_of(writer_scope, None)  # type: ignore[arg-type] - it is not used
        flow.write_paused = True
        writing = asyncio.ensure_future(write(b"0123456789abcdef"))
        await asyncio.sleep(0.02)
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(100)
        flow.read()
        await writing
        assert theirs.recv(100) == b"10\r\n0123456789abcdef\r\n"
        transport.close()
        await write(b"the client has left")  # nothing happens
        theirs.close()

    asyncio.run(work())


def test_a_server_without_the_short_way_is_used_as_it_is() -> None:
    sent = []

    async def send(message: object) -> None:
        sent.append(message)

    asyncio.run(writer_of({"http_version": "1.1"}, send)(b"part"))
    assert sent == [{"type": "http.response.body", "body": b"part", "more_body": True}]
