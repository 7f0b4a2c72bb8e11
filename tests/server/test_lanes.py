"""Lanes: whatever strangers send, short texts are answered meanwhile."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import wait
from typing import Any

import psutil
import pytest

from jengine.confined.errand import Errand, GivenUp
from jengine.errors import RequestError
from jengine.server.serving import monitor, work_threads
from jengine.server.serving import rendering as rendering_module
from jengine.server.serving.rendering import Rendering
from jengine.text.confined_tokenizer import ConfinedTokenizer
from jengine.text.tokenizer import SHORT
from tests.server.listening import PATIENCE, Client, Listening, listening, until
from tests.server.serving import error_of, letters, serving

LONG = "hello world " * (SHORT // 10)
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listening]:
    monkeypatch.setattr(rendering_module, "FEWEST", 1)
    monkeypatch.setattr(rendering_module, "MOST", 1)
    with listening(trust_request_chat_template=True) as one:
        yield one


def chat(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, **more}


def processes(server: Listening) -> list[int]:
    confined = server.service.live.rendering._confined
    assert confined is not None
    return confined.pool.pids


def told(server: Listening, name: str) -> float:
    """A number of the lane of long texts, at /metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
        text = answer.read().decode()
    labels = '{lane="long texts",model_name="letters"}'
    return float(text.split(f"jengine:{name}{labels} ")[1].split()[0])


@pytest.fixture
def confined() -> Iterator[ConfinedTokenizer]:
    one = ConfinedTokenizer(letters().hf, size=1, seconds=60, most_bytes=2**30)
    yield one
    one.close()


def test_a_process_gives_what_the_tokenizer_gives(confined: ConfinedTokenizer) -> None:
    own = letters()
    assert confined.encode("a</s>b", True, None, None) == own.encode("a</s>b")
    assert confined.encode("abcdef", True, 3, "left") == own.encode("def")
    assert confined.encode_plain("a</s>") == own.encode_plain("a</s>")
    assert confined.encode_pair("ab", "c", None)[0] == own.encode_pair("ab", "c")[0]
    assert confined.beginning("abcdef", 2) == own.beginning("abcdef", 2) == "ab"
    assert confined.decode([5, 2, 6], False) == own.decode([5, 2, 6], False)
    messages = [{"role": "user", "content": "\ud800 big " + str(2**70)}]
    assert confined.run_template(messages, {}) == own.hf.apply_chat_template(
        messages, tokenize=False
    )


@pytest.mark.parametrize("given_up", [False, True])
def test_errors_of_late_calls_are_not_logged_by_asyncio(*, given_up: bool) -> None:
    lane, go_on, seen = (
        work_threads.ThreadLane("texts", 1, 0.01),
        threading.Event(),
        list[dict[str, Any]](),
    )

    def fail() -> None:
        go_on.wait(PATIENCE)
        raise RequestError("no")

    async def late() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
        job, errand = lane._pool.submit(fail), Errand(0 if given_up else PATIENCE)
        answer = asyncio.create_task(lane._late(job, [errand]))
        await asyncio.sleep(0)  # it waits, or has given up
        go_on.set()
        with pytest.raises(GivenUp if given_up else RequestError):
            await answer
        await asyncio.to_thread(wait, [job])
        await asyncio.sleep(0)
        del answer, job
        gc.collect()

    asyncio.run(late())
    lane.close()
    assert seen == []


def test_long_texts_are_tokenized_by_processes_and_short_ones_here() -> None:
    with serving() as client:
        rendering: Rendering = client.app.state.service.live.rendering  # type: ignore[attr-defined]
        assert rendering._confined is not None
        assert client.post("/tokenize", json={"prompt": "a b"}).json()["count"] == 3
        assert rendering._confined.pool.pids == []
        found = client.post("/tokenize", json={"prompt": LONG}).json()
        assert found["count"] == len(LONG) and len(rendering._confined.pool.pids) == 1
        back = client.post("/detokenize", json={"tokens": found["tokens"]}).json()
        assert back == {"prompt": LONG}
        text = client.get("/metrics").text
        assert 'jengine:rendering_given_up_total{lane="long texts",model_name="letters"} 0' in text
    assert rendering._confined.pool.pids == [] and letters().confined is None


def test_templates_that_do_not_end_hold_up_nobody_and_are_ended(server: Listening) -> None:
    rendering = server.service.live.rendering
    endless = [
        Client(server.port).send("/v1/chat/completions", chat(chat_template=ENDLESS))
        for _ in range(rendering.long.threads + 2)
    ]
    until(lambda: len(processes(server)) == rendering.long.threads)
    until(lambda: rendering.long.busy == rendering.long.threads)
    assert told(server, "rendering_busy_workers") == rendering.long.threads
    assert server.connect(prompt="a", max_tokens=1).status == 200
    short = Client(server.port).send("/v1/chat/completions", chat())
    assert short.status == 200
    known = processes(server)
    for one in endless:
        one.leave()
    until(lambda: not any(map(psutil.pid_exists, known)), lambda: f"left: {processes(server)}")
    until(lambda: rendering.long.busy == 0)
    until(lambda: told(server, "rendering_given_up_total") == rendering.long.threads)
    assert Client(server.port).send("/tokenize", {"prompt": LONG}).status == 200


@pytest.mark.slow
def test_who_takes_too_long_gets_400_and_who_never_ran_503() -> None:
    with listening(trust_request_chat_template=True, render_timeout=2) as server:
        rendering = server.service.live.rendering
        endless = [
            Client(server.port).send("/v1/chat/completions", chat(chat_template=ENDLESS))
            for _ in range(rendering.long.threads)
        ]
        until(lambda: rendering.long.busy == rendering.long.threads)
        until(lambda: len(processes(server)) == rendering.long.threads)
        waiting = Client(server.port).send("/tokenize", {"prompt": LONG})
        for one in endless:
            assert one.status == 400 and b"longer than 2 seconds" in one.read_until(b"}}")
        assert waiting.status in (200, 503)
        assert rendering.long.given_up == len(endless)


def test_a_call_that_waited_and_never_ran_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    render = Rendering.prompt

    def held(*given: Any) -> Any:
        assert go_on.wait(PATIENCE)
        return render(*given)

    monkeypatch.setattr(Rendering, "prompt", held)
    monkeypatch.setattr(work_threads, "GRACE", 0.0)
    with listening(render_timeout=0.2) as server:
        first = [server.connect(prompt="a", max_tokens=1) for _ in range(2)]
        until(lambda: server.service.live.rendering.short.busy == 2)
        last = server.connect(prompt="a", max_tokens=1)
        assert last.status == 503 and b"retry-after" in last.read_until(b"}}").lower()
        assert [one.status for one in first] == [400, 400]
        until(lambda: server.service.stuck_lanes)
        watch = server.service.watch
        assert watch is not None
        monitor.judge(server.service, watch)
        health = Client(server.port)
        health.sock.sendall(b"GET /health HTTP/1.1\r\nHost: test\r\n\r\n")
        assert health.status == 503 and b"short texts are stuck" in health.read_until(b"}")
        go_on.set()
        until(lambda: not server.service.stuck_lanes)
        monitor.judge(server.service, watch)
        assert server.connect(prompt="a", max_tokens=1).status == 200


ROUTES = {
    "/v1/completions": ({"prompt": "a" * 101}, "prompt"),
    "/v1/chat/completions": (chat(messages=[{"role": "user", "content": "a" * 101}]), "messages"),
    "/v1/messages": (chat(messages=[{"role": "user", "content": "a" * 101}]), "messages"),
    "/v1/messages/count_tokens": ({"messages": [{"role": "u", "content": "a" * 101}]}, "messages"),
    "/v1/responses": ({"input": "a" * 101}, "input"),
    "/tokenize": ({"prompt": "a" * 101}, "prompt"),
}


@pytest.mark.parametrize("path", ROUTES)
def test_a_text_beyond_the_limit_is_refused_on_every_route(path: str) -> None:
    body, name = ROUTES[path]
    with serving(max_text_chars=100) as client:
        response = client.post(path, json=body)
        assert response.status_code == 400, response.text
        assert f"{name} has more than 100 characters" in response.text
        assert "--max-text-chars" in response.text
        few = client.post(path, content=json.dumps(body).replace("a" * 101, "a"))
        assert few.status_code in (400, 415), "no content type"


def test_too_many_messages_and_tokens_are_refused() -> None:
    with serving(max_messages=2, max_text_chars=5) as client:
        many = [{"role": "user", "content": ""}] * 3
        for path in ("/v1/chat/completions", "/v1/messages", "/tokenize"):
            response = client.post(path, json={"messages": many, "max_tokens": 1})
            assert response.status_code == 400 and "--max-messages" in response.text
        error = error_of(client.post("/detokenize", json={"tokens": [5] * 6}), 400)
        assert error["param"] == "tokens" and "--max-text-chars" in error["message"]
    with serving() as client:
        nested = b'{"prompt": "a", "logit_bias": {"a": [' + b"[]," * 2**17 + b"[]]}}"
        kind = {"Content-Type": "application/json"}
        assert "lists and objects" in error_of(
            client.post("/v1/completions", content=nested, headers=kind), 400
        )["message"]  # fmt: skip
        slow = b'{"prompt": "a", "x": [' + b"1e300," * 2**12 + b"1e300]}"
        message = error_of(client.post("/v1/completions", content=slow, headers=kind), 400)
        assert "The body has more than 4096 numbers with exponents" in message["message"]
        calls = [{"function": {"name": "f", "arguments": f"[{'1e300,' * 2**12}1e300]"}}]
        chat = {"messages": [{"role": "assistant", "content": "", "tool_calls": calls}]}
        refused = error_of(client.post("/v1/chat/completions", json=chat), 400)
        assert refused["param"] == "messages[0].tool_calls[0].function.arguments"
        text = json.dumps({"prompt": '[{"\\\\' * 2**17}).encode()  # brackets, and none of JSON's
        assert client.post("/tokenize", content=text, headers=kind).json()["count"] == 5 * 2**17
        words = {"prompt": "a", "max_tokens": 1, "bad_words": ["a" * 10_000]}
        assert error_of(client.post("/v1/completions", json=words), 400)["param"] == "bad_words"
