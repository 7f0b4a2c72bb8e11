"""The queue is bounded: refused before any work, told when to come again, counted by its cause."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from jengine.cli.serving.box import box_of
from jengine.server.errors import ApiError
from jengine.server.serving.rendering import Rendering
from tests.server.listening import PATIENCE, Client, listening, until
from tests.server.serving import letters_engine, service_of, serving

LONG = {"prompt": "abc", "max_tokens": 1000, "ignore_eos": True, "stream": True}


def refusal(client: Client) -> dict[str, Any]:
    """The headers of a 503."""
    assert client.status == 503
    head = client.got.partition(b"\r\n\r\n")[0].decode().lower()
    assert "retry-after: " in head
    client.leave()
    return dict(line.split(": ", 1) for line in head.split("\r\n")[1:])


def test_a_hundred_at_once_and_ten_places(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: Counter[str] = Counter()
    render = Rendering.prompt

    def counted(self: Rendering, *arguments: object) -> object:
        rendered["prompts"] += 1
        return render(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Rendering, "prompt", counted)
    with listening(letters_engine(max_num_seqs=4), max_num_queued_reqs=10) as server:
        server.script.step_seconds = 0.01
        clients: list[Client] = []
        begin = threading.Barrier(20)

        def connect() -> None:
            begin.wait()
            clients.extend(server.connect(**LONG) for _ in range(5))

        threads = [threading.Thread(target=connect) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until(
            lambda: server.service.live.admission.rejections["max_num_queued_reqs"] == 90,
            lambda: f"{server.service.live.admission.rejections}",
        )
        assert server.service.open_requests == 10
        until(lambda: server.held[0] == 4 and server.held[1] == 6, lambda: f"{server.held}")
        assert rendered["prompts"] == 10, "what is refused is not tokenized"
        until(lambda: sum(map(has_503, clients)) == 90, lambda: "answers are missing")
        for client in filter(has_503, clients):
            refusal(client)
        for client in clients:
            client.leave()
        server.wait_until_idle()
        assert server.connect(prompt="a", max_tokens=1).status == 200


def has_503(client: Client) -> bool:
    """Whether the answer, if there is one yet, is a refusal."""
    client.sock.setblocking(False)
    try:
        return client.status == 503
    except BlockingIOError:
        return False
    finally:
        client.sock.settimeout(PATIENCE)


def test_each_completion_takes_a_place() -> None:
    with listening(max_num_queued_reqs=6) as server:
        server.script.step_seconds = 0.01
        first = server.connect(**{**LONG, "n": 4, "temperature": 1.0})
        first.read_until(b"data: ")
        refusal(server.connect(**{**LONG, "n": 3, "temperature": 1.0}))
        refusal(server.connect(**{**LONG, "prompt": ["a", "b", "c"]}))
        second = server.connect(**{**LONG, "n": 2, "temperature": 1.0})
        second.read_until(b"data: ")
        assert server.service.live.admission.rejections["max_num_queued_reqs"] == 2
        first.leave()
        second.leave()
        server.wait_until_idle()


def test_prompt_tokens_that_wait_are_limited() -> None:
    with listening(letters_engine(max_num_seqs=2), max_num_queued_tokens=100) as server:
        server.script.step_seconds = 0.01
        running = [server.connect(**LONG) for _ in range(2)]
        for client in running:
            client.read_until(b"data: ")
        waiting = server.connect(**{**LONG, "prompt": "a" * 90})
        until(lambda: server.held[1] == 1, lambda: f"{server.held}")
        refusal(server.connect(**{**LONG, "prompt": "a" * 20}))
        assert server.service.live.admission.rejections["max_num_queued_tokens"] == 1
        for client in (*running, waiting):
            client.leave()
        server.wait_until_idle()
        # An empty queue takes any prompt.
        assert server.connect(prompt="a" * 200, max_tokens=1).status == 200


def test_a_refused_request_gives_its_places_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: Rendering, *arguments: object) -> object:
        raise RuntimeError("a fault in the tokenizer")

    with listening(max_num_queued_reqs=2) as server:
        with monkeypatch.context() as patch:
            patch.setattr(Rendering, "prompt", failing)
            for stream in (True, False) * 3:
                client = server.connect(prompt="a", max_tokens=1, stream=stream)
                assert client.status == 500, "a fault in one request's preprocessing is its own"
                assert b"a fault in the tokenizer" not in client.read_until(b"}}")
        assert server.service.open_requests == 0
        assert server.connect(prompt="a", max_tokens=1).status == 200
        server.wait_until_idle()


def test_thousands_wait_unless_their_prompts_are_long() -> None:
    with serving(letters_engine(max_num_seqs=8)) as client:
        live = service_of(client).live
        tickets = [live.admission.enter(1) for _ in range(4000)]
        for ticket in tickets[:1024]:
            ticket.bring(4096)
        with pytest.raises(ApiError, match=r"4194304 prompt tokens wait.*max-num-queued-tokens"):
            tickets[-1].bring(1)
        box = box_of(live.engine, service_of(client).settings, "http://here")
        for ticket in tickets:
            ticket.release()
    assert "4,096 completions run or wait, with 4,194,304 prompt tokens waiting" in box
