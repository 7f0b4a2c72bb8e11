"""Responses, events and addresses, cut into pieces in every way."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jengine.client.address import Address
from jengine.client.errors import ServerBusy, ServerFailed, error_of
from jengine.client.event_reader import EventReader, read_chunk
from jengine.client.response_reader import BadResponse, ResponseReader
from jengine.errors import ConfigError, RequestError

BODY = b"data: one\n\n: comment\n\ndata: two\r\n\r\nevent: x\ndata: a\ndata: b\n\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


def chunked(body: bytes, sizes: list[int]) -> bytes:
    encoded = b""
    for part in pieces(body, sizes):
        encoded += f"{len(part):x};extension\r\n".encode() + part + b"\r\n"
    return CHUNKED + encoded + b"0\r\nTrailer: x\r\n\r\n"


@given(st.lists(st.integers(0, 500)), st.lists(st.integers(0, 500)))
def test_a_chunked_stream_of_events_may_be_cut_anywhere(cuts: list[int], sizes: list[int]) -> None:
    response, events = ResponseReader(), EventReader()
    found: list[bytes] = []
    for piece in pieces(chunked(BODY, sizes), cuts):
        assert not response.complete
        found += events.feed(response.feed(piece))
    assert response.complete and response.stays_open and response.status == 200
    assert found == [b"one", b"two", b"a\nb"]


@given(st.lists(st.integers(0, 200)))
def test_a_body_of_known_length_after_an_interim_response(cuts: list[int]) -> None:
    response, body = ResponseReader(), b""
    data = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    data += b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
    for piece in pieces(data, cuts):
        body += response.feed(piece)
        assert response.status in (0, 404) and "link" not in response.headers
    assert response.complete and response.status == 404 and not response.stays_open
    assert body == b"hello"


@pytest.mark.parametrize("length", [b"Content-Length: 5", b"Transfer-Encoding: chunked"])
def test_a_response_to_head_ends_with_its_headers(length: bytes) -> None:
    response = ResponseReader(to_head=True)
    assert response.feed(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n\r\n") == b""
    assert response.complete and response.stays_open


def test_a_body_that_ends_with_the_connection() -> None:
    response = ResponseReader()
    assert response.feed(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\n\r\nhel") == b"hel"
    assert response.feed(b"lo") == b"lo" and not response.complete
    response.end()
    assert response.complete and not response.stays_open


def test_a_connection_lost_in_a_chunk_is_not_the_end() -> None:
    response = ResponseReader()
    response.feed(CHUNKED + b"5\r\nhel")
    response.end()
    assert not response.complete


@pytest.mark.parametrize("data", [b"SSH-2.0-x\r\n\r\n", CHUNKED + b"zz\r\n", b"x" * 70_000])
def test_what_is_not_http_is_refused(data: bytes) -> None:
    with pytest.raises(BadResponse):
        ResponseReader().feed(data)


def test_chunks_of_chats_and_completions() -> None:
    text = read_chunk(b'{"id": "x", "choices": [{"text": "a", "token_ids": [5]}]}').choices[0]
    assert (text.added, text.thought, text.token_ids, text.opens) == ("a", "", [5], False)
    role = {"role": "assistant", "content": ""}
    cases = [
        (role, ("", "", True)),
        ({**role, "content": "a"}, ("a", "", False)),
        ({"reasoning": "hm"}, ("", "hm", False)),
        ({"reasoning_content": "hm"}, ("", "hm", False)),
        ({"content": None, "tool_calls": [{"index": 0}]}, ("", "", False)),
    ]
    for delta, expected in cases:
        choice = read_chunk(json.dumps({"choices": [{"delta": delta}]}).encode()).choices[0]
        assert (choice.added, choice.thought, choice.opens) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://localhost:8000", Address(False, "localhost", 8000)),
        ("https://host/v1/", Address(True, "host", 443)),
        ("http://[::1]:5/gateway/v1", Address(False, "::1", 5, "/gateway")),
    ],
)
def test_addresses(url: str, expected: Address) -> None:
    assert Address.of(url) == expected
    assert Address.of(str(expected)) == expected


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://x:port", "http://x?y=1"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"expected one like http://127.0.0.1:8000"):
        Address.of(url)


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (400, b'{"error": {"message": "too long"}}', RequestError, "too long"),
        (404, b'{"detail": "Not Found"}', RequestError, "Not Found"),
        (401, b'{"error": "Unauthorized"}', RequestError, "--api-key"),
        (503, b"busy", ServerBusy, "busy"),
        (500, b"", ServerFailed, "no message"),
    ],
)
def test_a_status_becomes_an_error_of_ours(
    status: int, body: bytes, kind: type[Exception], words: str
) -> None:
    error = error_of(status, body, "http://x:1")
    assert type(error) is kind and words in str(error)
