"""thinking_token_budget over HTTP: completions, chats and messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from jengine.assembly.engine import Engine
from tests.grammar.letters import ids
from tests.server.serving import answer_with, error_of, events, letters_engine, serving

HELLO = [{"role": "user", "content": "hi"}]
# A model that thinks, and never stops to.
MUSING = ids("<think>" + "hm" * 50)
PATHS = {
    "/v1/completions": {"prompt": "a", "max_tokens": 40},
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 40},
}


@pytest.fixture
def engine() -> Engine:
    return letters_engine(reasoning_parser="qwen3")


@pytest.fixture
def client(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    answer_with(monkeypatch, MUSING)
    with serving(engine) as made:
        yield made


def text_of(body: dict[str, Any]) -> str:
    (choice,) = body["choices"]
    return choice["text"] if "text" in choice else choice["message"]["content"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("budget", [0, 1, 7])
def test_reasoning_ends_where_its_budget_does(client: TestClient, path: str, budget: int) -> None:
    body = {**PATHS[path], "thinking_token_budget": budget}
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    text = text_of(answer.json())
    assert text.startswith("<think>" + "hmhmhmh"[:budget] + "</think>")
    assert len(text) == 40 and "think" not in text[15 + budget :], "the rest is free"


@pytest.mark.parametrize("more", [{}, {"thinking_token_budget": -1}, {"thinking_token_budget": 33}])
def test_without_a_limit_it_goes_on(client: TestClient, more: dict[str, int]) -> None:
    body = {**PATHS["/v1/completions"], **more}
    text = text_of(client.post("/v1/completions", json=body).json())
    assert text == "<think>" + ("hm" * 50)[:33]


def test_a_stream_brings_the_forced_end(client: TestClient) -> None:
    body = {**PATHS["/v1/completions"], "thinking_token_budget": 2, "stream": True}
    text = "".join(text_of(one) for one in events(client.post("/v1/completions", json=body)))
    assert text.startswith("<think>hm</think>") and len(text) == 40


def test_anthropics_budget_of_thinking(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, MUSING)
    body = {"messages": HELLO, "max_tokens": 40}
    with serving(engine, reasoning_parser="qwen3") as client:
        limited = {**body, "thinking": {"type": "enabled", "budget_tokens": 3}}
        thinking, text = client.post("/v1/messages", json=limited).json()["content"]
        assert thinking["thinking"] == "hmh" and len(text["text"]) == 40 - 18
        for kind in ("adaptive", "disabled"):  # which do not set one
            free = {**body, "thinking": {"type": kind, "budget_tokens": 3}}
            (thinking,) = client.post("/v1/messages", json=free).json()["content"]
            assert thinking["thinking"] == ("hm" * 50)[:33]


@pytest.mark.parametrize("path", PATHS)
def test_what_is_refused(client: TestClient, path: str) -> None:
    for value in (-2, 1.5, True, "three"):
        error = error_of(
            client.post(path, json={**PATHS[path], "thinking_token_budget": value}), 400
        )
        assert error["param"] == "thinking_token_budget"
    beams = {**PATHS[path], "thinking_token_budget": 4, "use_beam_search": True}
    assert error_of(client.post(path, json=beams), 400)["param"] == "thinking_token_budget"


def test_an_engine_that_knows_no_marks_keeps_no_budget() -> None:
    with serving() as client:
        for path, body in PATHS.items():
            given = {**body, "thinking_token_budget": 4}
            error = error_of(client.post(path, json=given), 400)
            assert error["param"] == "thinking_token_budget"
            assert "reasoning_config is not configured" in error["message"]
            given["thinking_token_budget"] = -1
            assert client.post(path, json=given).status_code == 200
        message = {
            "messages": HELLO, "max_tokens": 4,
            "thinking": {"type": "enabled", "budget_tokens": 2},
        }  # fmt: skip
        answer = client.post("/v1/messages", json=message)
        assert answer.status_code == 400 and "not configured" in answer.text
