"""Servers that join and leave a router while it passes requests on."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.testclient import TestClient

from jengine.routing import error_answers
from jengine.routing.admin import PATH
from jengine.routing.app import make_router
from jengine.routing.server_pool import ServerPool
from tests.client.scripted_server import answer, event, left, read, serving, start

KEY = {"Authorization": "Bearer key"}
NOBODY = "http://127.0.0.1:9"
LONGEST = 60.0


class HeldServer:
    """Answers when it is let go; a stream has begun before."""

    def __init__(self) -> None:
        self.held = threading.Event()
        self.asked = threading.Semaphore(0)
        self.count = 0
        self.disconnected = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "GET":
            await answer(send, {})
            return
        streams = b'"stream": true' in await read(receive)
        if streams:
            await start(send, 200, b"text/event-stream")
            await event(send, {"first": 1})
        self.count += 1
        self.asked.release()
        while not self.held.is_set():
            if await left(receive, 0.005):
                self.disconnected.set()
                return
        if streams:
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        else:
            await answer(send, {"whole": True})

    def wait(self) -> None:
        """Return when it has one more request."""
        assert self.asked.acquire(timeout=LONGEST)


@contextmanager
def held() -> Iterator[tuple[HeldServer, str]]:
    server = HeldServer()
    with serving(server) as url:
        try:
            yield server, url
        finally:
            server.held.set()


@contextmanager
def released(*servers: HeldServer) -> Iterator[None]:
    """Let servers go at the end, also of a test that fails: threads wait for their answers."""
    try:
        yield
    finally:
        for server in servers:
            server.held.set()


@contextmanager
def router(*workers: str, key: str | None = "key") -> Iterator[TestClient]:
    made = make_router([*workers], [], health_every=30.0, wait_seconds=0.0, admin_key=key)
    with TestClient(made) as client:
        yield client


def servers(client: TestClient) -> list[dict[str, Any]]:
    return client.get(PATH, headers=KEY).json()["servers"]


def asks(client: TestClient, prompt: str, *, stream: bool = False) -> Any:
    body = b'{"prompt": "%s", "stream": %s}' % (prompt.encode(), str(stream).lower().encode())
    return client.post("/v1/completions", content=body)


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_leaves_ends_what_it_has(stream: bool) -> None:
    with (
        held() as (one, url), held() as (other, second), router(url) as client,
        ThreadPoolExecutor(1) as pool, released(one, other),
    ):  # fmt: skip
        first = pool.submit(asks, client, "a", stream=stream)
        one.wait()
        joined = client.post(PATH, headers=KEY, json={"url": second}).json()
        assert joined["is_up"] and joined["role"] == "decode"
        left = client.request("DELETE", PATH, headers=KEY, json={"url": url + "/v1"})
        assert left.json() == {"url": url, "open_requests": 1}
        assert [(s["url"], s["leaves"]) for s in servers(client)] == [(second, False), (url, True)]
        other.held.set()
        assert asks(client, "b").json() == {"whole": True}
        assert (one.count, other.count) == (1, 1), "the one that leaves gets no more"
        one.held.set()
        ended = first.result(LONGEST)
        assert ended.status_code == 200
        assert ended.text.endswith("[DONE]\n\n") if stream else ended.json() == {"whole": True}
        assert [s["url"] for s in servers(client)] == [second]


def test_a_server_that_is_not_there_gets_nothing_until_it_is() -> None:
    with held() as (one, url), router(url) as client:
        one.held.set()
        joined = client.post(PATH, headers=KEY, json={"url": NOBODY})
        assert joined.status_code == 200 and joined.json()["is_up"] is False
        assert [asks(client, str(number)).status_code for number in range(8)] == [200] * 8
        assert one.count == 8
        twice = client.post(PATH, headers=KEY, json={"url": NOBODY})
        assert twice.status_code == 200 and len(servers(client)) == 2


def test_the_last_one_leaves_and_another_joins() -> None:
    with held() as (one, url), router(url) as client:
        one.held.set()
        assert client.request("DELETE", PATH, headers=KEY, json={"url": url}).status_code == 200
        gone = client.request("DELETE", PATH, headers=KEY, json={"url": url})
        assert gone.status_code == 404 and "none of the servers" in gone.text
        nobody = asks(client, "a")
        assert nobody.status_code == 503 and "there is none" in nobody.text
        assert client.get("/health").status_code == 503
        client.post(PATH, headers=KEY, json={"url": url})
        assert asks(client, "a").status_code == 200 and client.get("/health").status_code == 200


def test_who_computes_prompts_may_join() -> None:
    with held() as (one, url), held() as (prefiller, second), router(url) as client:
        one.held.set()
        prefiller.held.set()
        client.post(PATH, headers=KEY, json={"url": second, "role": "prefill"})
        assert asks(client, "a").json() == {"whole": True}
        assert (one.count, prefiller.count) == (1, 1)
        client.request("DELETE", PATH, headers=KEY, json={"url": second, "role": "prefill"})
        assert asks(client, "b").json() == {"whole": True}
        assert (one.count, prefiller.count) == (2, 1)


def test_only_who_has_the_key_may_change_the_servers() -> None:
    with router(NOBODY) as client:
        for headers in ({}, {"Authorization": "Bearer other"}, {"Authorization": "key"}):
            assert client.get(PATH, headers=headers).status_code == 403
    with router(NOBODY, key=None) as client:
        refused = client.post(PATH, headers=KEY, json={"url": NOBODY})
        assert refused.status_code == 403 and "--admin-key" in refused.text


@pytest.mark.parametrize(
    "body", ["no json", "[]", "{}", '{"url": 5}', '{"url": "a:1"}',
             '{"url": "http://a", "role": "x"}', '{"url": "http://a", "rol": "decode"}'],
)  # fmt: skip
def test_what_names_no_server_is_refused(body: str) -> None:
    with router(NOBODY) as client:
        refused = client.post(PATH, headers=KEY, content=body)
        assert refused.status_code == 400 and "http://" in refused.text
        assert len(servers(client)) == 1


def test_requests_are_load_before_their_answers_begin() -> None:
    """A whole answer begins when it ends: until then its server has this to do."""
    with (
        held() as (one, url), held() as (other, second), router(url, second) as client,
        ThreadPoolExecutor(2) as pool, released(one, other),
    ):  # fmt: skip
        first = pool.submit(asks, client, "a")
        assert one.asked.acquire(timeout=LONGEST)
        then = pool.submit(asks, client, "b")
        other.wait()
        one.held.set()
        other.held.set()
        assert first.result(LONGEST).status_code == then.result(LONGEST).status_code == 200
        assert [s["open_requests"] for s in servers(client)] == [0, 0]


def test_who_waits_for_a_whole_answer_and_leaves_ends_it() -> None:
    with held() as (one, url), serving(make_router([url], []), loop="asyncio") as front:
        host, port = front.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 15\r\n\r\n"
                b'{"prompt": "a"}'
            )
            one.wait()
        assert one.disconnected.wait(LONGEST), "the server goes on with it"


def test_bodies_that_are_too_long_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_answers, "MOST_BODY", 1000)
    with held() as (one, url), router(url) as client:
        one.held.set()
        for path in ("/v1/completions", "/v1/other"):
            long = client.post(path, content=b"x" * 1001)
            assert long.status_code == 413 and "more than 1000 bytes" in long.text
        assert one.count == 0 and client.post("/v1/other", content=b"x").status_code == 200


def test_servers_of_https_are_asked_over_tls() -> None:
    plain, secure = ServerPool(["http://a", "https://b"]).backends
    assert plain.connections._security is None
    assert isinstance(secure.connections._security, ssl.SSLContext)
