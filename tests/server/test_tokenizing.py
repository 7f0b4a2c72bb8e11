"""The tokenizer over HTTP, routes that are refused by name, admin routes, and the schema."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.testclient import TestClient

from jengine.api.front import Front
from jengine.server.app import ENDPOINTS, POOLING
from jengine.server.http import openapi
from jengine.server.serving.service import Service
from tests.engine.scripted import script_of
from tests.server.listening import PATIENCE, until
from tests.server.serving import error_of, letters, letters_engine, service_of, serving

HELLO = [{"role": "user", "content": "hello"}]
ADMIN = {"Authorization": "Bearer master"}


@pytest.fixture
def client() -> Iterator[TestClient]:
    with serving(admin_key=("master",)) as one:
        yield one


def test_tokens_of_a_text(client: TestClient) -> None:
    body = {"prompt": "hi there", "return_token_strs": True}
    found = client.post("/tokenize", json=body).json()
    assert found["tokens"] == letters().encode("hi there")
    assert found["count"] == 8 and found["max_model_len"] == 1024
    assert found["token_strs"] == list("hi there")
    back = client.post("/detokenize", json={"tokens": found["tokens"]}).json()
    assert back == {"prompt": "hi there"}


def test_tokens_of_a_conversation_are_those_of_its_completion(client: TestClient) -> None:
    tokens = client.post("/tokenize", json={"messages": HELLO}).json()["tokens"]
    body = {"messages": HELLO, "return_token_ids": True}
    assert client.post("/v1/chat/completions", json=body).json()["prompt_token_ids"] == tokens


def test_a_text_beyond_the_context_can_be_counted(client: TestClient) -> None:
    assert client.post("/tokenize", json={"prompt": "a" * 5000}).json()["count"] == 5000


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HELLO}, "prompt"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/tokenize", {"messages": HELLO, "chat_template": "x"}, "chat_template"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens"),
        ("/detokenize", {"tokens": [10**12]}, "tokens"),
        ("/detokenize", {"tokens": [1, "x"]}, "tokens[1]"),
    ],
)
def test_what_is_refused(client: TestClient, path: str, body: Any, param: str) -> None:
    assert error_of(client.post(path, json=body), 400)["param"] == param


def test_the_tokenizers_configuration_is_told_on_request_only(client: TestClient) -> None:
    assert "--enable-tokenizer-info" in error_of(client.get("/tokenizer_info"), 404)["message"]
    with serving(enable_tokenizer_info_endpoint=True) as open_one:
        info = open_one.get("/tokenizer_info").json()
        assert info["eos_token"] == "</s>" and "messages" in info["chat_template"]


@pytest.mark.parametrize("path", [one[0] for one in POOLING])
def test_a_model_that_generates_has_no_pooling_routes(client: TestClient, path: str) -> None:
    assert "pooling" in error_of(client.post(path, json={"input": "a"}), 404)["message"]


def test_a_pause_keeps_requests_until_the_resume(client: TestClient) -> None:
    assert client.post("/pause?mode=keep", headers=ADMIN).json() == {"status": "paused"}
    assert client.get("/is_paused", headers=ADMIN).json() == {"is_paused": True}
    results: list[int] = []

    def ask() -> None:
        results.append(client.post("/v1/completions", json={"prompt": "a"}).status_code)

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: service_of(client).open_requests)
    time.sleep(0.05)
    assert results == [] and client.get("/health").status_code == 200, "a pause is no stall"
    assert client.post("/resume", headers=ADMIN).json() == {"status": "resumed"}
    asking.join(PATIENCE)
    assert results == [200]
    assert error_of(client.post("/pause?mode=stop", headers=ADMIN), 400)["param"] == "mode"


def test_one_engine_in_this_process_cannot_be_scaled(client: TestClient) -> None:
    path = "/scale_elastic_ep"
    refused = client.post(path, json={"new_data_parallel_size": 3}, headers=ADMIN)
    assert "data_parallel_size of 2 or more" in error_of(refused, 400)["message"]
    for body in ({}, {"new_data_parallel_size": "3"}):
        error_of(client.post(path, json=body, headers=ADMIN), 400)
    body = {"new_data_parallel_size": 3, "drain_timeout": -1}
    assert error_of(client.post(path, json=body, headers=ADMIN), 400)["param"] == "drain_timeout"
    assert client.post(path, json={"new_data_parallel_size": 3}).status_code in (401, 403)


def test_requests_are_aborted_by_the_ids_that_clients_know() -> None:
    engine = letters_engine()
    script_of(engine).step_seconds = 0.005
    with serving(engine, admin_key=("master",)) as client:
        answers: dict[str, Any] = {}

        def ask(name: str) -> None:
            body = {"prompt": "a", "max_tokens": 900, "request_id": name}
            answers[name] = client.post("/v1/completions", json=body).json()

        askers = [threading.Thread(target=ask, args=(name,)) for name in ("one", "two")]
        for asker in askers:
            asker.start()
        until(lambda: len(engine.session.open_answers) == 2)
        path = "/abort_requests"
        body = {"request_ids": ["cmpl-one", "cmpl-other"]}
        assert client.post(path, json=body, headers=ADMIN).json() == {"aborted": 1}
        askers[0].join(PATIENCE)
        assert answers["one"]["choices"][0]["finish_reason"] == "abort" and "two" not in answers
        assert client.post(path, json={}, headers=ADMIN).json() == {"aborted": 1}
        askers[1].join(PATIENCE)
        assert answers["two"]["choices"][0]["finish_reason"] == "abort"


def test_the_prefix_cache_is_reset(client: TestClient) -> None:
    assert client.post("/reset_prefix_cache", headers=ADMIN).json() == {"status": "reset"}
    refused = client.post("/reset_prefix_cache?reset_running_requests=x", headers=ADMIN)
    error_of(refused, 400)


def test_profiles_need_a_folder(client: TestClient) -> None:
    assert (
        "--profiler-dir" in error_of(client.post("/start_profile", headers=ADMIN), 404)["message"]
    )


def test_a_memory_profile_of_each_process(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        Front, "call_workers", lambda _, method, given: asked.append(method) or [b"one", b"two"]
    )
    for query, expected in (("", b"one"), ("?rank=1", b"two")):
        found = client.get(f"/memory_profile{query}", headers=ADMIN)
        assert (found.status_code, found.content) == (200, expected)
    assert asked == ["memory_profile"] * 2
    for rank in ("2", "-1", "x"):
        assert error_of(client.get(f"/memory_profile?rank={rank}", headers=ADMIN), 400)["param"]


def test_the_schema_tells_every_route_and_every_field(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    for endpoint in ENDPOINTS:
        path = endpoint.path.replace(":path}", "}")
        operation = document["paths"][path][endpoint.method.lower()]
        assert operation["summary"], path
        assert ("requestBody" in operation) == (endpoint.body is not None)
    fields = document["components"]["schemas"]["ChatRequest"]["properties"]
    assert {"messages", "temperature", "tools", "stream_options"} <= set(fields)
    assert "ErrorBody" in document["components"]["schemas"]
    assert fields["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 2}
    for name, names in {
        "ChatRequest": ["messages"],
        "MessagesRequest": ["messages", "max_tokens"],
    }.items():
        schema = document["components"]["schemas"][name]
        assert schema["required"] == names
        assert not any(
            {"type": "null"} in schema["properties"][one].get("anyOf", ()) for one in names
        )


def test_a_summary_is_a_whole_first_paragraph() -> None:
    async def handler(service: Service, http: Request) -> Response:
        """Answers with
        what it holds.

        Of no interest to clients.
        """
        raise NotImplementedError

    route = ENDPOINTS[0]._replace(handler=handler)
    assert openapi.operation(route, route.path, None)["summary"] == "Answers with what it holds."


def test_the_schema_has_a_body_that_each_route_answers(client: TestClient) -> None:
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method, operation in methods.items():
            if "requestBody" in operation:
                body = operation["requestBody"]["content"]["application/json"]["example"]
                response = client.request(method, path, json=body, headers=ADMIN)
                # No folder of adapters is allowed; tests/lora/test_http.py has a server that does.
                expected = {
                    "/v1/load_lora_adapter": 400,
                    "/scale_elastic_ep": 400,
                    "/v1/unload_lora_adapter": 404,
                    "/v1/batches": 404,  # off; see test_batches.py
                }
                expected |= {one[0]: 404 for one in POOLING}  # see test_pooling.py
                assert response.status_code == expected.get(path, 200), (path, response.text)
                assert "x-jengine-ignored-fields" not in response.headers


def test_browsers_of_other_origins() -> None:
    with serving(allowed_origins=("https://a.example",), api_key=("k",)) as client:
        asks = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
        preflight = client.options("/v1/completions", headers=asks)
        assert preflight.headers["access-control-allow-origin"] == "https://a.example"
        refused = client.options("/v1/completions", headers={**asks, "Origin": "https://b.example"})
        assert "access-control-allow-origin" not in refused.headers


@pytest.mark.parametrize("path", ["/proxy/v1/models", "/v1/models"])
def test_a_proxy_may_strip_its_prefix_or_not(path: str) -> None:
    with serving(root_path="/proxy", api_key=("k",)) as client:
        error_of(client.get(path), 401)
        assert client.get(path, headers={"Authorization": "Bearer k"}).status_code == 200
        assert client.get(path.replace("v1/models", "health")).status_code == 200
