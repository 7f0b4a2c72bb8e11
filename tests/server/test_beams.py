"""use_beam_search over HTTP: the best sequences are the choices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from jengine import BeamSearchParams
from jengine.api.llm import LLM
from tests.server.serving import UNTOLD, error_of, letters_engine, service_of, serving

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BEAMS = {
    "use_beam_search": True, "n": 3, "temperature": 0, "max_tokens": 5, "ignore_eos": True,
    "skip_special_tokens": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with serving() as one:
        yield one


def searched(client: TestClient, path: str, **body: Any) -> dict[str, Any]:
    response = client.post(path, json={**BEAMS, **body})
    assert response.status_code == 200, response.text
    return response.json()


def test_completions_are_the_best_sequences(client: TestClient) -> None:
    body = searched(client, COMPLETIONS, prompt=["hello", "no"], logprobs=2, return_token_ids=True)
    params = BeamSearchParams(3, 5, ignore_eos=True, skip_special_tokens=False)
    expected = LLM.over(letters_engine()).beam_search(["hello", "no"], params)
    texts = [one["text"] for one in body["choices"]]
    assert texts[:3] == [beam.text[5:] for beam in expected[0].sequences if beam.text]
    assert texts[3:] == [beam.text[2:] for beam in expected[1].sequences if beam.text]
    assert len({tuple(one["token_ids"]) for one in body["choices"][:3]}) == 3
    assert [one["index"] for one in body["choices"]] == list(range(6))
    assert {one["finish_reason"] for one in body["choices"]} == {"length"}
    assert body["usage"] == {
        "prompt_tokens": 7, "completion_tokens": 30, "total_tokens": 37, **UNTOLD
    }  # fmt: skip
    for one in body["choices"]:
        assert "".join(one["logprobs"]["tokens"]) == one["text"]
        assert len(one["logprobs"]["top_logprobs"][0]) >= 2


def test_a_conversation(client: TestClient) -> None:
    body = searched(client, CHAT, messages=[{"role": "user", "content": "hi"}])
    texts = [one["message"]["content"] for one in body["choices"]]
    assert len(texts) == 3 and all(len(text) >= 5 for text in texts)
    assert not service_of(client).live.front.session.open_answers


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"echo": True}, "echo"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"use_beam_search": False, "length_penalty": 2.0, "n": 1}, "length_penalty"),
    ],
)
def test_what_is_refused(client: TestClient, fields: dict[str, Any], param: str) -> None:
    response = client.post(COMPLETIONS, json={**BEAMS, "prompt": "a", **fields})
    assert error_of(response, 400)["param"] == param


def test_more_beams_than_log_probabilities_are_refused(client: TestClient) -> None:
    response = client.post(COMPLETIONS, json={**BEAMS, "prompt": "a", "n": 11})
    assert "max_logprobs=20" in error_of(response, 400)["message"]
