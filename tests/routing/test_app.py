"""The router: prompts that begin alike go to one server, failures to the next; prefill is first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.testclient import TestClient

from jengine.client.errors import ServerFailed
from jengine.routing import app
from jengine.routing.app import make_router
from jengine.routing.exchange import Reply
from jengine.routing.server_pool import PIECE, Backend, ServerPool, pieces_of
from jengine.wire.json_limits import MOST_EXTREME
from tests.client.scripted_server import (
    BROKEN,
    ScriptedServer,
    answer,
    read,
    scripted,
    serving,
)

NOBODY = "http://127.0.0.1:9"  # the port of "discard", where nothing listens
LONG = "once upon a time " * 40


@pytest.fixture
def servers() -> Iterator[tuple[ScriptedServer, ScriptedServer]]:
    with scripted() as one, scripted() as other:
        yield one, other


@contextmanager
def router(
    workers: list[str], prefill: list[str] | None = None, wait_seconds: float = 0.0
) -> Iterator[TestClient]:
    made = make_router(workers, prefill or [], health_every=30.0, wait_seconds=wait_seconds)
    with TestClient(made) as client:
        yield client


class Prefiller:
    """A server that computes prompts, and says where their blocks are."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "GET":
            await answer(send, {})
            return
        self.asked.append(json.loads(await read(receive)))
        await answer(send, {"choices": [], "kv_transfer_params": {"remote_port": 5}})


def body(prompt: str = LONG, **more: Any) -> dict[str, Any]:
    return {"model": "scripted", "prompt": prompt, "max_tokens": 3, **more}


def test_answers_pass_through_whole_and_streamed(
    servers: tuple[ScriptedServer, ScriptedServer],
) -> None:
    with router([servers[0].url]) as client:
        streamed = client.post("/v1/completions", json=body(stream=True))
        assert streamed.status_code == 200 and "[DONE]" in streamed.text
        assert servers[0].asked[-1] == body(stream=True)
        models = client.get("/v1/models")
        assert models.json()["data"][0]["id"] == "scripted"
        assert int(models.headers["content-length"]) == len(models.content)
        assert client.get("/health").status_code == 200
        broken = client.post("/v1/completions", json=body("x" + BROKEN))
        assert broken.status_code == 500 and "out of luck" in broken.text


def test_head_is_answered_by_the_headers_alone() -> None:
    async def lone(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, {"method": scope["method"]})

    with serving(lone) as url, router([url]) as client:
        for _ in range(2):  # on one connection
            head = client.head("/v1/models")
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-length"] == "18"
        assert client.get("/v1/models").json() == {"method": "GET"}


def test_prompts_that_begin_alike_go_to_one_server(
    servers: tuple[ScriptedServer, ScriptedServer],
) -> None:
    with router([servers[0].url, servers[1].url]) as client:
        for number in range(6):
            client.post("/v1/completions", json=body(LONG + str(number), stream=True))
    assert sorted(len(one.asked) for one in servers) == [0, 6]


def test_a_server_that_does_not_answer_is_stood_in_for(
    servers: tuple[ScriptedServer, ScriptedServer],
) -> None:
    with router([NOBODY, servers[0].url]) as client:
        assert client.post("/v1/completions", json=body(stream=True)).status_code == 200
    with router([NOBODY]) as client:
        nobody = client.post("/v1/completions", json=body())
    assert nobody.status_code == 503 and "no server answers" in nobody.json()["error"]["message"]
    assert nobody.headers["retry-after"] == "1"


def test_a_prompt_waits_for_a_server_that_comes_back(
    servers: tuple[ScriptedServer, ScriptedServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, refused = Reply.begin, [1, 2, 3]

    async def refusing(self: Reply, backend: Backend, request: bytes) -> None:
        if refused:
            refused.pop()
            raise ServerFailed(f"{backend.address} does not answer.")
        await begin(self, backend, request)

    monkeypatch.setattr(app, "GLANCE", 0.01)
    monkeypatch.setattr(Reply, "begin", refusing)
    with router([servers[0].url], wait_seconds=30.0) as client:
        waited = client.post("/v1/completions", json=body(stream=True))
        assert waited.status_code == 200 and not refused
        refused.append(1)  # what is no prompt does not wait
        assert client.get("/v1/models").status_code == 503
    assert len(servers[0].asked) == 1


def test_prefill_runs_first_and_decode_is_told(
    servers: tuple[ScriptedServer, ScriptedServer],
) -> None:
    decoder, prefiller = servers[0], Prefiller()
    asked = body(stream=True, stream_options={"include_usage": True})
    with serving(prefiller) as url, router([decoder.url], [url]) as client:
        assert "[DONE]" in client.post("/v1/completions", json=asked).text
        # What is too much is for the server to refuse.
        too_much = {**body(stream=True), "x": [1e300] * (MOST_EXTREME + 1)}
        assert client.post("/v1/completions", json=too_much).status_code == 200
    (first,) = prefiller.asked
    assert first["max_tokens"] == 1 and first["stream"] is False
    assert first["kv_transfer_params"]["do_remote_decode"] is True
    assert "stream_options" not in first
    assert decoder.asked == [{**asked, "kv_transfer_params": {"remote_port": 5}}, too_much]


def test_without_a_prefiller_the_other_computes_the_prompt(
    servers: tuple[ScriptedServer, ScriptedServer],
) -> None:
    with router([servers[0].url], [NOBODY]) as client:
        assert client.post("/v1/completions", json=body(stream=True)).status_code == 200
    assert "kv_transfer_params" not in servers[0].asked[0]


def test_pieces_of_prompts_that_begin_alike() -> None:
    one, other = pieces_of(body(LONG + "a" * PIECE)), pieces_of(body(LONG + "b" * PIECE))
    same = next(i for i, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])
    assert same >= len(json.dumps(LONG)) // PIECE - 1 >= 1
    assert pieces_of(body(cache_salt="s"))[0] != pieces_of(body())[0]
    pool = ServerPool(["http://a", "http://b"])
    with pool.backends[1].reading(one):
        pass
    assert pool.best(one) is pool.backends[1]
    with pool.backends[1].reading(one), pool.backends[1].reading(one):
        assert pool.best(one) is pool.backends[0], "a cache is worth what it saves, not a queue"
    assert pool.best(one, pool.backends) is None
