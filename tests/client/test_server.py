"""The client of one answer at a time, against a scripted server."""

from __future__ import annotations

import time

import pytest

from jengine.client.address import Address
from jengine.client.errors import ServerFailed
from jengine.client.server import Server
from jengine.errors import CapacityError, RequestError
from tests.client.scripted_server import BROKEN, BUSY, CUT, MODEL, NO_END, REFUSED, scripted

ROUTE = "/v1/completions"


def body(prompt: str, count: int = 3) -> dict[str, object]:
    return {"model": MODEL, "prompt": prompt, "max_tokens": count, "stream": True}


def test_models_and_a_stream() -> None:
    with scripted() as scene:
        server = Server(Address.of(scene.url))
        assert [one["id"] for one in server.models()] == [MODEL]
        chunks = list(server.stream(ROUTE, body("hello", 4)))
    assert "".join(c.choices[0].added for c in chunks if c.choices) == " one two three one"
    assert chunks[-1].usage and chunks[-1].usage.completion_tokens == 4


def test_a_stream_that_is_closed_ends_at_the_server() -> None:
    with scripted(seconds_per_token=0.02) as scene:
        stream = Server(Address.of(scene.url)).stream(ROUTE, body("hello", 1000))
        assert next(stream).choices[0].added == " one"
        stream.close()
        end = time.monotonic() + 60
        while not scene.disconnects:
            assert time.monotonic() < end, "the server was never told"
            time.sleep(0.01)
    assert scene.disconnects == 1


@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [
        (REFUSED, RequestError, r"this prompt is refused \(status 400"),
        (BUSY, CapacityError, r"no request at the moment.*the queue is full"),
        (BROKEN, ServerFailed, "status 500: out of luck"),
        (CUT, ServerFailed, "the engine died"),
        (NO_END, ServerFailed, "ended its answer before it was complete"),
    ],
)
def test_failures_of_the_server(prompt: str, error: type[Exception], words: str) -> None:
    with scripted() as scene, pytest.raises(error, match=words):
        list(Server(Address.of(scene.url)).stream(ROUTE, body(prompt)))


def test_keys() -> None:
    with scripted(key="secret") as scene:
        address = Address.of(scene.url)
        assert Server(address, "secret").models()
        with pytest.raises(RequestError, match="OPENAI_API_KEY"):
            Server(address).models()


def test_a_server_that_is_not_there() -> None:
    with scripted() as scene:
        url = scene.url
    with pytest.raises(ServerFailed, match=f"{url} cannot be reached"):
        Server(Address.of(url)).models()
