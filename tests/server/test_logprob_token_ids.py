"""logprob_token_ids over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.grammar.letters import ids
from tests.server.serving import answer_with, error_of, events, serving

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]
NAMED = ids("zab")
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "a", "max_tokens": 2, "logprobs": 1},
    CHATS: {"messages": HELLO, "max_tokens": 2, "logprobs": True},
}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    answer_with(monkeypatch, ids("xb"))
    with serving() as made:
        yield made


def test_a_completion_has_the_sampled_token_and_the_named_ones_in_order(client: TestClient) -> None:
    body = {**BODIES[COMPLETIONS], "logprob_token_ids": NAMED}
    (choice,) = client.post(COMPLETIONS, json=body).json()["choices"]
    found = choice["logprobs"]
    assert found["tokens"] == ["x", "b"]
    assert [list(top) for top in found["top_logprobs"]] == [["x", "z", "a", "b"], ["b", "z", "a"]]
    for token, value, top in zip(
        found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True
    ):
        assert top[token] == value


@pytest.mark.parametrize("top", [{}, {"top_logprobs": 1}])
def test_a_chat_has_them_whatever_number_it_asks_for(
    client: TestClient, top: dict[str, int]
) -> None:
    body = {**BODIES[CHATS], **top, "logprob_token_ids": NAMED}
    (choice,) = client.post(CHATS, json=body).json()["choices"]
    found = [
        [one["token"] for one in each["top_logprobs"]] for each in choice["logprobs"]["content"]
    ]
    assert found == [["x", "z", "a", "b"], ["b", "z", "a"]]


def test_streams_bring_them(client: TestClient) -> None:
    body = {**BODIES[COMPLETIONS], "logprob_token_ids": NAMED, "stream": True}
    chunks = [one["choices"][0]["logprobs"] for one in events(client.post(COMPLETIONS, json=body))]
    tops = [list(top) for found in chunks if found for top in found["top_logprobs"]]
    assert tops == [["x", "z", "a", "b"], ["b", "z", "a"]]


@pytest.mark.parametrize("path", BODIES)
def test_what_is_refused(client: TestClient, path: str) -> None:
    body = {**BODIES[path], "logprob_token_ids": NAMED}
    needs = {key: value for key, value in body.items() if key != "logprobs"}
    cases: list[dict[str, Any]] = [
        needs,
        {**body, "use_beam_search": True},
        {**body, "logprob_token_ids": [0] * 129},
        {**body, "logprob_token_ids": [5000]},
        {**body, "logprob_token_ids": [-1]},
    ]
    if path == COMPLETIONS:
        cases.append({**body, "echo": True, "max_tokens": 0})
    for case in cases:
        error = error_of(client.post(path, json=case), 400)
        assert error["param"] == "logprob_token_ids", error
    assert "`logprobs` must be set" in error_of(client.post(path, json=needs), 400)["message"]


@pytest.mark.parametrize("path", BODIES)
def test_no_ids_are_as_if_none_were_named(client: TestClient, path: str) -> None:
    body = BODIES[path]
    named = client.post(path, json={**body, "logprob_token_ids": []})
    plain = client.post(path, json=body)
    assert named.status_code == 200, named.text
    assert named.json()["choices"] == plain.json()["choices"]
    assert named.json()["choices"][0]["logprobs"]
