"""POST /v1/completions: prompts of every kind, echo, log-probabilities, streams equal to wholes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from jengine.errors import RequestError
from jengine.scheduler.transfers import NoTransfers
from jengine.server.http.body import decoded
from tests.engine.scripted import told
from tests.server.serving import UNTOLD, error_of, events, letters, serving

PATH = "/v1/completions"


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with serving() as one:
        yield one


def complete(client: TestClient, **body: Any) -> dict[str, Any]:
    response = client.post(PATH, json={"temperature": 0, **body})
    assert response.status_code == 200, response.text
    return response.json()


def answer_to(text: str, count: int) -> str:
    return letters().decode(told(letters().encode(text), count), skip_special_tokens=True)


def test_a_text(client: TestClient) -> None:
    body = complete(client, prompt="hello", max_tokens=7)
    (choice,) = body["choices"]
    assert choice["text"] == answer_to("hello", 7) and choice["finish_reason"] == "length"
    assert choice["index"] == 0 and choice["logprobs"] is None and choice["stop_reason"] is None
    assert body["id"].startswith("cmpl-") and body["object"] == "text_completion"
    assert body["usage"] == {
        "prompt_tokens": 5, "total_tokens": 12, "completion_tokens": 7, **UNTOLD
    }  # fmt: skip
    assert body["system_fingerprint"].startswith("jengine-")
    assert list(body) == [
        "id", "object", "created", "model", "choices", "service_tier", "system_fingerprint",
        "usage", "kv_transfer_params", "ec_transfer_params", "metrics",
    ]  # fmt: skip
    assert list(choice) == [
        "index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids",
        "prompt_logprobs", "prompt_token_ids", "routed_experts",
    ]  # fmt: skip


def test_options_of_a_stream_that_say_nothing_need_no_stream(client: TestClient) -> None:
    assert complete(client, prompt="a", stream_options={})["choices"]


@pytest.mark.parametrize("n", [0, 129])
def test_a_limit_is_told_as_it_is(client: TestClient, n: int) -> None:
    error = error_of(client.post(PATH, json={"prompt": "a", "n": n}), 400)
    assert error["message"] == f"n={n}: expected an integer from 1 to 128."


@pytest.mark.parametrize("fields", [{}, {"max_tokens": None}], ids=["absent", "null"])
def test_an_answer_is_as_long_as_the_model_says_where_nothing_is_asked(
    client: TestClient, fields: dict[str, Any]
) -> None:
    body = complete(client, prompt="hello", **fields, stop=None, n=None, logprobs=None)
    assert body["usage"]["completion_tokens"] == 5  # the scripted model's generation config


def test_prompts_of_every_kind(client: TestClient) -> None:
    ids = [letters().encode("ab"), letters().encode("c")]
    texts = complete(client, prompt=["ab", "c"], max_tokens=4)
    assert [one["text"] for one in texts["choices"]] == [answer_to("ab", 4), answer_to("c", 4)]
    assert [one["index"] for one in texts["choices"]] == [0, 1]
    assert complete(client, prompt=ids, max_tokens=4)["choices"] == texts["choices"]
    assert complete(client, prompt=ids[0], max_tokens=4)["choices"] == texts["choices"][:1]


def test_several_answers_to_several_prompts_are_numbered_through(client: TestClient) -> None:
    body = complete(client, prompt=["a", "b"], max_tokens=3, n=3, temperature=1)
    assert [one["index"] for one in body["choices"]] == list(range(6))
    assert body["usage"]["prompt_tokens"] == 2 and body["usage"]["completion_tokens"] == 18


def test_echo_with_logprobs_as_lm_eval_reads_it(client: TestClient) -> None:
    body = complete(client, prompt="hello", max_tokens=1, echo=True, logprobs=1)
    (choice,) = body["choices"]
    table = choice["logprobs"]
    assert choice["text"] == "hello" + answer_to("hello", 1)
    assert table["tokens"] == list(choice["text"]) and table["text_offset"] == list(range(6))
    assert table["token_logprobs"][0] is None and table["top_logprobs"][0] is None
    for token, value, top in list(
        zip(table["tokens"], table["token_logprobs"], table["top_logprobs"], strict=True)
    )[1:]:
        assert top[token] == value, "the token itself is among the best, bit for bit"
    assert len(choice["prompt_logprobs"]) == 5 and choice["prompt_logprobs"][0] is None


def test_echo_alone_scores_the_prompt_and_writes_nothing(client: TestClient) -> None:
    (choice,) = complete(client, prompt="hello", max_tokens=0, echo=True, logprobs=2)["choices"]
    assert choice["text"] == "hello" and choice["logprobs"]["tokens"] == list("hello")
    assert (
        error_of(client.post(PATH, json={"prompt": "a", "max_tokens": 0}), 400)["param"]
        == "max_tokens"
    )


def test_token_ids_and_tokens_as_ids(client: TestClient) -> None:
    (choice,) = complete(
        client, prompt="hi", max_tokens=3, logprobs=0, return_token_ids=True,
        return_tokens_as_token_ids=True,
    )["choices"]  # fmt: skip
    assert choice["prompt_token_ids"] == letters().encode("hi")
    assert choice["token_ids"] == told(letters().encode("hi"), 3)
    assert choice["logprobs"]["tokens"] == [f"token_id:{one}" for one in choice["token_ids"]]


def test_a_stop_string(client: TestClient) -> None:
    text = answer_to("hello", 9)
    (choice,) = complete(client, prompt="hello", max_tokens=20, stop=[text[4:6]])["choices"]
    assert choice["text"] == text[:4] and choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == text[4:6]


def test_a_stream_and_its_usage(client: TestClient) -> None:
    body = {
        "prompt": "hello", "max_tokens": 6, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }  # fmt: skip
    *chunks, last = events(client.post(PATH, json=body))
    assert "".join(one["choices"][0]["text"] for one in chunks) == answer_to("hello", 6)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert [one["usage"]["completion_tokens"] for one in chunks][-1] == 6
    assert last["choices"] == [] and last["usage"]["total_tokens"] == 11
    plain = events(client.post(PATH, json={**body, "stream_options": None}))
    assert not any("usage" in one for one in plain)
    assert [i for i, one in enumerate(plain) if "system_fingerprint" in one] == [len(plain) - 1]


def test_the_interval_of_a_stream(client: TestClient) -> None:
    body = {"prompt": "hello", "max_tokens": 40, "temperature": 0, "stream": True}
    chunks = events(client.post(PATH, json={**body, "stream_interval": 20}))
    assert len(chunks) <= 4


requests = st.fixed_dictionaries(
    {"prompt": st.sampled_from(["a", "hello there", ["ab", "c", "ab"], [40, 41]])},
    optional={
        "n": st.integers(1, 3),
        "echo": st.booleans(),
        "logprobs": st.integers(0, 3),
        "max_tokens": st.integers(1, 12),
        "stop": st.lists(st.text("abcdefgh47HS#", min_size=1, max_size=2), max_size=4),
        "include_stop_str_in_output": st.booleans(),
        "return_token_ids": st.booleans(),
    },
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(requests)
def test_a_stream_adds_up_to_the_whole_answer(client: TestClient, body: dict[str, Any]) -> None:
    body = {"seed": 7, "temperature": 1, **body}
    whole = complete(client, **body)["choices"]
    streamed: dict[int, dict[str, Any]] = {}
    for chunk in events(client.post(PATH, json={**body, "stream": True})):
        for new in chunk["choices"]:
            add_up(streamed.setdefault(new["index"], {}), new)
    for choice in whole:
        for name in ("prompt_logprobs", "routed_experts"):  # not in streams
            choice.pop(name)
        if not body.get("return_token_ids"):  # an echo brings them in a stream
            streamed[choice["index"]]["prompt_token_ids"] = None
    assert [streamed[index] for index in sorted(streamed)] == whole


def add_up(sum_: dict[str, Any], new: dict[str, Any]) -> None:
    for name, value in new.items():
        if isinstance(value, str) and name == "text":
            sum_[name] = sum_.get(name, "") + value
        elif isinstance(value, list) and name == "token_ids":
            sum_[name] = sum_.get(name, []) + value
        elif isinstance(value, dict):
            lists = sum_.setdefault(name, {key: [] for key in value})
            for key, items in value.items():
                lists[key] += items
        elif value is not None or name not in sum_:
            sum_[name] = value


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [1, -1]}, "prompt"),
        ({"prompt": [97]}, "prompt"),
        ({"prompt": [2**70]}, "prompt"),
        ({"prompt": "a" * 1024}, "input_tokens"),
        ({"prompt": "a" * 100_000}, "input_tokens"),
        ({"prompt": "a", "max_tokens": 1025}, "max_tokens"),
        ({"prompt": "a", "n": 129}, "n"),
        ({"prompt": "a", "n": 10**9}, "n"),
        ({"prompt": ["a"] * 1025}, "prompt"),
        ({"prompt": "a", "stop": ["a"] * 5}, "stop"),
        ({"prompt": "a", "temperature": "warm"}, "temperature"),
        ({"prompt": "a", "temperature": 3}, "temperature"),
        ({"prompt": "a", "logprobs": "many"}, "logprobs"),
        ({"prompt": "a", "logprobs": -2}, "logprobs"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "length_penalty": 2.0}, "length_penalty"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt": "a", "stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"prompt": "a", "stream_options": {"include_usage": 3}}, "stream_options.include_usage"),
        ({"prompt": "a", "prompt_embeds": "AAAA"}, "prompt_embeds"),
        ({"prompt": "a", "cache_salt": ""}, "cache_salt"),
        ({"prompt": "a", "cache_salt": "x\n"}, "cache_salt"),
        ({"prompt": "a", "response_format": {"type": "xml"}}, "response_format.type"),
        ({"prompt": "a", "logit_bias": {"5000": 1}}, "logit_bias"),
        ({"prompt": "a", "request_id": "a\nb"}, "request_id"),
        ({"prompt": "a", "n": 2, "temperature": 0}, "n"),
    ],
)
def test_what_is_refused(client: TestClient, body: dict[str, Any], param: str) -> None:
    error = error_of(client.post(PATH, json=body), 400)
    assert error["type"] == "BadRequestError" and error["param"] == param
    streamed = client.post(PATH, json={"stream": True, **body})
    if "stream_options" not in body:
        assert error_of(streamed, 400)["param"] == param, "a real status, as nothing was sent"


def test_an_echo_beside_ids_has_no_text_of_the_prompt(client: TestClient) -> None:
    body = {"prompt": "hello", "max_tokens": 2, "echo": True, "return_token_ids": True}
    (choice,) = complete(client, **body, logprobs=0)["choices"]
    assert choice["text"] == answer_to("hello", 2)
    assert choice["prompt_token_ids"] == letters().encode("hello")
    assert len(choice["logprobs"]["tokens"]) == 7
    chunks = events(client.post(PATH, json={"temperature": 0, "stream": True, **body}))
    assert "".join(one["choices"][0]["text"] for one in chunks) == choice["text"]


def test_ids_of_requests(client: TestClient) -> None:
    name = "trace:7/user@host#2+a=="
    response = client.post(PATH, json={"prompt": "a", "max_tokens": 1, "request_id": name})
    assert response.json()["id"] == f"cmpl-{name}" and response.headers["x-request-id"] == name
    for wrong in ("", "a b", "a;b", "a\tb", "é", "a" * 129):
        body = {"prompt": "a", "request_id": wrong}
        assert error_of(client.post(PATH, json=body), 400)["param"] == "request_id"


def test_numbers_may_be_written_as_other_kinds_of_numbers(client: TestClient) -> None:
    body = complete(client, prompt="hello", max_tokens=3)
    for fields in ({"max_tokens": 3.0}, {"max_tokens": "3"}, {"max_tokens": 3, "temperature": "0"}):
        assert complete(client, prompt="hello", **fields)["choices"] == body["choices"]
    chunks = events(client.post(PATH, json={"prompt": "a", "stream": "true", "max_tokens": 1e0}))
    assert len(chunks) == 1
    for wrong in (3.5, "3.5", "three", ""):
        error = error_of(client.post(PATH, json={"prompt": "a", "max_tokens": wrong}), 400)
        assert error["param"] == "max_tokens"


def test_what_is_not_built(client: TestClient) -> None:
    body = {"prompt": "a", "watermarking": True}
    error_of(client.post(PATH, json=body), 501)


def test_arguments_for_processors_reach_the_engine(client: TestClient) -> None:
    """Which has none here, and says so."""
    response = client.post(PATH, json={"prompt": "hello", "vllm_xargs": {"target_token": 3}})
    assert "extra_args" in error_of(response, 400)["message"]
    assert client.post(PATH, json={"prompt": "hello", "vllm_xargs": {}}).status_code == 200
    huge = client.post(PATH, json={"prompt": "hello", "vllm_xargs": {"a": 2**70}})
    assert "numbers of 64 bits" in error_of(huge, 400)["message"]


def test_what_engines_say_of_blocks_goes_in_and_comes_out(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NoTransfers, "finished", lambda _, request: request.wire.kv_transfer)
    said = {"do_remote_decode": True, "remote_host": None}
    body = {"prompt": "hello", "max_tokens": 2, "kv_transfer_params": said}
    assert client.post(PATH, json=body).json()["kv_transfer_params"] == said
    assert client.post(PATH, json={"prompt": "hello"}).json()["kv_transfer_params"] is None
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    answer = client.post("/v1/chat/completions", json={**chat, "kv_transfer_params": said})
    assert answer.json()["kv_transfer_params"] == said
    error_of(client.post(PATH, json={**body, "kv_transfer_params": [1]}), 400)


def test_unknown_fields_are_named(client: TestClient) -> None:
    response = client.post(PATH, json={"prompt": "a", "stream_usage": True, "b\nc": 1})
    assert response.headers["x-jengine-ignored-fields"] == "stream_usage"
    with serving(strict_requests=True) as strict:
        error = error_of(strict.post(PATH, json={"prompt": "a", "stream_usage": True}), 400)
        assert error["param"] == "stream_usage"


def test_what_only_the_core_refuses_is_the_clients_fault(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RequestError("top_k=7: this core cannot.")

    monkeypatch.setattr("jengine.engine.core.EngineCore.add", refuse)
    for stream in (False, True):
        error = error_of(client.post(PATH, json={"prompt": "a", "stream": stream}), 400)
        assert error["message"] == "top_k=7: this core cannot." and error["param"] == "top_k"


def test_a_large_body_is_decoded_beside_the_loop(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def watched(*given: Any) -> Any:
        threads.append(threading.current_thread().name)
        return decoded(*given)

    monkeypatch.setattr("jengine.server.http.body.decoded", watched)
    client.post(PATH, json={"prompt": "a"})
    client.post(PATH, json={"prompt": "a", "user": "b" * 300_000})
    small, large = threads
    assert small != large
    assert client.post(PATH, json={"prompt": [0] * 200_000}).status_code == 400


def test_a_header_names_the_replica(client: TestClient) -> None:
    ask = {"prompt": "a"}
    assert client.post(PATH, json=ask, headers={"X-data-parallel-rank": "0"}).status_code == 200
    refused = client.post(PATH, json=ask, headers={"X-data-parallel-rank": "3"})
    assert "out of range [0, 1)" in error_of(refused, 400)["message"]


def test_the_request_id_comes_back(client: TestClient) -> None:
    response = client.post(PATH, json={"prompt": "a"}, headers={"X-Request-Id": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1" and response.json()["id"] == "cmpl-mine-1"
    for bad in ("a b", "x" * 129, "a;b"):
        refused = client.post(PATH, json={"prompt": "a"}, headers={"X-Request-Id": bad})
        assert error_of(refused, 400)["param"] == "X-Request-Id"
