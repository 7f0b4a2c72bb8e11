"""/v1/responses: items in and out, streams equal to wholes, the store."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
import uvicorn
from openai import NotFoundError, OpenAI
from starlette.testclient import TestClient

from jengine.server.app import make_app
from jengine.server.errors import ApiError
from jengine.server.settings import ServerSettings
from tests.client.scripted_server import QuickServer
from tests.server.listening import until
from tests.server.serving import (
    NAME,
    answer_with,
    error_of,
    letters,
    letters_engine,
    service_of,
    serving,
)

PATH = "/v1/responses"
TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
PARSERS = {
    "tool_call_parser": "hermes",
    "reasoning_parser": "deepseek_r1",
    "enable_auto_tool_choice": True,
}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
Say = Callable[..., None]


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Say:
    """Makes the scripted model answer with a text, then end; each token may take time."""

    def script(text: str, seconds: float = 0.0) -> None:
        ids = [*letters().encode(text, add_special_tokens=False), 2]
        answer_with(monkeypatch, ids, seconds)

    return script


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with serving() as one:
        yield one


@pytest.fixture(scope="module")
def parsing() -> Iterator[TestClient]:
    with serving(**PARSERS) as one:
        yield one


def ask(client: TestClient, given: Any, **fields: Any) -> dict[str, Any]:
    response = post(client, given, **fields)
    assert response.status_code == 200, response.text
    return response.json()


def post(client: TestClient, given: Any, **fields: Any) -> httpx2.Response:
    return client.post(
        PATH,
        json={"input": given, "max_output_tokens": 300, "stop_token_ids": [2], **fields},
    )


def stream(client: TestClient, given: Any, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream, whose names are those of their data."""
    response = post(client, given, stream=True, **fields)
    assert response.status_code == 200, response.text
    events = []
    for frame in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def plain(response: dict[str, Any]) -> dict[str, Any]:
    """A response without what differs from one time to the next."""
    text = json.dumps({**response, "id": "", "created_at": 0, "completed_at": 0})
    same = json.loads(text)
    for item in same["output"]:
        item.pop("id")
        item.pop("call_id", None)
    return same


def test_a_text(client: TestClient, say: Say) -> None:
    say("hello")
    body = ask(client, "hi", instructions="be brief", temperature=0.5, metadata={"a": "b"})
    assert body["object"] == "response" and body["id"].startswith("resp_")
    assert body["status"] == "completed" and body["error"] is None
    assert body["model"] == NAME and body["instructions"] == "be brief"
    assert body["temperature"] == 0.5 and body["metadata"] == {"a": "b"}
    assert body["max_output_tokens"] == 300 and body["text"] == {"format": {"type": "text"}}
    (item,) = body["output"]
    assert item["id"].startswith("msg_") and item["role"] == "assistant"
    assert item["content"] == [
        {"type": "output_text", "text": "hello", "annotations": [], "logprobs": []}
    ]
    prompt = "<s>system:be brief</s><s>user:hi</s><s>assistant:"
    count = len(letters().encode(prompt, add_special_tokens=False))
    assert body["usage"] == {
        "input_tokens": count,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": count - count % 4},
        "output_tokens": 6,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": count + 6,
    }


def test_an_answer_that_is_cut_off_is_incomplete(client: TestClient, say: Say) -> None:
    say("hello")
    body = ask(client, "hi", max_output_tokens=3)
    assert body["status"] == "incomplete" and body["completed_at"] is None
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["output"][0]["status"] == "incomplete"
    assert body["output"][0]["content"][0]["text"] == "hel"


def test_reasoning_content_and_calls_are_items(parsing: TestClient, say: Say) -> None:
    say(f"<think>why</think>Well.{CALL}{CALL}")
    reasoning, message, first, second = ask(parsing, "hi", tools=TOOLS)["output"]
    assert reasoning["type"] == "reasoning" and reasoning["summary"] == []
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "why"}]
    assert message["content"][0]["text"] == "Well."
    assert first["type"] == "function_call" and first["name"] == "f"
    assert first["arguments"] == '{"a": 1}' and first["call_id"] != second["call_id"]
    say(f"<think>why</think>{CALL}{CALL}")
    body = ask(parsing, "hi", tools=TOOLS, parallel_tool_calls=False)
    assert [item["type"] for item in body["output"]] == ["reasoning", "function_call"]
    assert body["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}
    say("<think>why</think>Well.")
    body = ask(parsing, "hi", include_reasoning=False)
    assert [item["type"] for item in body["output"]] == ["message"]


@pytest.mark.parametrize(
    "text",
    ["hello", "", "<think>why</think>\n\nso", f"<think>a</think>b{CALL}\n{CALL}", "<think>cut"],
)
def test_a_stream_adds_up_to_the_whole_response(parsing: TestClient, say: Say, text: str) -> None:
    say(text)
    whole = ask(parsing, "hi", tools=TOOLS)
    say(text)
    first, second, *rest, last = stream(parsing, "hi", tools=TOOLS)
    assert (first["type"], second["type"]) == ("response.created", "response.in_progress")
    assert first["response"]["status"] == "in_progress" and first["response"]["output"] == []
    assert last["type"] == "response.completed"
    assert plain(last["response"]) == plain(whole)
    assert first["response"]["id"] == last["response"]["id"]
    assert items_of(rest) == last["response"]["output"]


def items_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items that the events of a stream tell of; deltas must add up to what ends them."""
    items: list[dict[str, Any]] = []
    text = ""
    for event in events:
        if event["type"] == "response.output_item.added":
            assert event["output_index"] == len(items)
            items.append({})
            text = ""
        elif event["type"].endswith(".delta"):
            text += event["delta"]
        elif event["type"].endswith((".output_text.done", ".reasoning_text.done")):
            assert event["text"] == text and event["content_index"] == 0
        elif event["type"].endswith("arguments.done"):
            assert event["arguments"] == text
        elif event["type"] == "response.output_item.done":
            items[event["output_index"]] = event["item"]
    return items


def test_a_stream_that_is_cut_off(client: TestClient, say: Say) -> None:
    say("hello")
    last = stream(client, "hi", max_output_tokens=2)[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_an_error_in_a_stream_is_told_and_kept(
    client: TestClient, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    say("a" * 200, seconds=0.005)
    monkeypatch.setattr("jengine.server.serving.generation.refuse_failed", failing_at(2))
    last = stream(client, "hi")[-1]
    assert last["type"] == "response.failed" and last["response"]["status"] == "failed"
    assert last["response"]["error"] == {"code": "server_error", "message": "It broke."}
    (item,) = last["response"]["output"]
    assert item["status"] == "incomplete" and item["content"][0]["text"].startswith("a")
    assert client.get(f"{PATH}/{last['response']['id']}").json() == last["response"]
    say("hello")
    monkeypatch.setattr("jengine.server.serving.generation.refuse_failed", failing_at(1))
    error_of(post(client, "hi", stream=True), 500)
    error_of(post(client, "hi"), 500)


def failing_at(number: int) -> Callable[..., None]:
    """Stands for a request that fails at one of its outputs."""
    left = iter(range(number))

    def fail(*_: Any, **__: Any) -> None:
        if next(left, number) >= number - 1:
            raise ApiError(500, "It broke.")

    return fail


def test_log_probabilities(client: TestClient, say: Say) -> None:
    options = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    say("hello")
    (item,) = ask(client, "hi", **options)["output"]
    scores = item["content"][0]["logprobs"]
    assert "".join(one["token"] for one in scores[:5]) == "hello"
    assert all(len(one["top_logprobs"]) == 2 for one in scores)
    say("hello")
    last = stream(client, "hi", **options)[-1]
    assert last["response"]["output"][0]["content"][0]["logprobs"] == scores


def test_items_as_input(parsing: TestClient, say: Say) -> None:
    """The scripted template writes roles and contents: cached tokens show that they agree."""
    say("x")
    asked = [
        {"role": "developer", "content": [{"type": "input_text", "text": "abc"}]},
        {"type": "message", "role": "user", "content": "hi"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": []},
        {"role": "assistant", "content": [{"type": "output_text", "text": "yes"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "result"},
    ]
    usage = ask(parsing, asked)["usage"]
    prompt = "<s>system:abc</s><s>user:hi</s><s>assistant:yes</s><s>tool:result</s><s>assistant:"
    assert usage["input_tokens"] == len(letters().encode(prompt, add_special_tokens=False))


@pytest.mark.parametrize(
    ("body", "param", "status"),
    [
        ({"input": None}, "input", 400),
        ({"input": []}, "input", 400),
        ({"input": 3}, "input", 400),
        ({"input": [{"role": "user", "content": 3}]}, "input[0].content", 400),
        ({"input": [{"content": "x"}]}, "input[0].role", 400),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]", 400),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
            400,
        ),
        ({"background": True}, "background", 400),
        ({"use_beam_search": True}, "use_beam_search", 400),
        ({"conversation": "x"}, "conversation", 400),
        ({"prompt": {"id": "x"}}, "prompt", 400),
        ({"previous_response_id": "resp_x"}, "previous_response_id", 404),
        ({"max_output_tokens": 0}, "max_output_tokens", 400),
        ({"n": 2}, "n", 400),
        ({"include": ["nothing"]}, "include", 400),
        ({"top_logprobs": 2}, "top_logprobs", 400),
        ({"truncation": "maybe"}, "truncation", 400),
        ({"metadata": {"a": 1}}, "metadata[...]", 400),
        ({"temperature": -1}, "temperature", 400),
        ({"model": "other"}, "model", 404),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", 400),
        ({"tools": TOOLS}, "tool_choice", 400),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", 400),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", 400),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", 400),
        ({"input": "x" * 5000}, "input_tokens", 400),
    ],
)
def test_what_is_refused(client: TestClient, body: dict[str, Any], param: str, status: int) -> None:
    for streamed in (False, True):
        response = client.post(PATH, json={"input": "hi", "stream": streamed, **body})
        assert error_of(response, status)["param"] == param


def test_errors_name_routes_and_no_files(client: TestClient) -> None:
    refused = client.post(PATH, json={"input": "hi", "use_beam_search": True})
    assert "Send /v1/chat/completions." in error_of(refused, 400)["message"]
    assert ApiError(500, "No file /srv/models/a.json.").body.error.message == "No file <path>"


def test_log_probabilities_do_not_go_with_parsers(parsing: TestClient) -> None:
    response = post(parsing, "hi", include=["message.output_text.logprobs"])
    assert error_of(response, 400)["param"] == "include"


def test_a_prompt_that_is_too_long_may_be_cut(client: TestClient, say: Say) -> None:
    say("ok")
    body = ask(client, "x" * 500, truncation="auto", max_output_tokens=10)
    assert body["status"] == "completed" and body["truncation"] == "auto"


# --- the store -----------------------------------------------------------------------------


def test_a_response_goes_on_from_an_earlier_one(client: TestClient, say: Say) -> None:
    say("one")
    first = ask(client, "a", instructions="not carried over")
    say("two")
    second = ask(client, "b", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    prompt = "<s>user:a</s><s>assistant:one</s><s>user:b</s><s>assistant:"
    count = len(letters().encode(prompt, add_special_tokens=False))
    assert second["usage"]["input_tokens"] == count
    say("three")
    third = ask(client, "c", previous_response_id=second["id"])
    prompt = prompt + "two</s><s>user:c</s><s>assistant:"
    count = len(letters().encode(prompt, add_special_tokens=False))
    assert third["usage"]["input_tokens"] == count


def test_stored_responses_can_be_asked_for_and_deleted(client: TestClient, say: Say) -> None:
    say("one")
    body = ask(client, "a")
    path = f"{PATH}/{body['id']}"
    assert client.get(path).json() == body
    assert error_of(client.get(f"{path}?stream=true"), 400)["param"] == "stream"
    assert error_of(client.post(f"{path}/cancel"), 400)["message"].startswith(
        "The response is completed"
    )
    assert client.delete(path).json() == {"id": body["id"], "object": "response", "deleted": True}
    for refused in (client.get(path), client.delete(path), client.post(f"{path}/cancel")):
        assert error_of(refused, 404)["type"] == "NotFoundError"


def test_what_is_not_to_be_stored_is_not(client: TestClient, say: Say) -> None:
    say("one")
    body = ask(client, "a", store=False)
    assert body["store"] is False
    error_of(client.get(f"{PATH}/{body['id']}"), 404)
    error_of(post(client, "b", previous_response_id=body["id"]), 404)


def test_a_stream_is_stored_too(client: TestClient, say: Say) -> None:
    say("one")
    response = stream(client, "a")[-1]["response"]
    assert client.get(f"{PATH}/{response['id']}").json() == response


def test_the_store_has_its_bounds(say: Say) -> None:
    with serving(max_stored_responses=2) as client:
        ids = []
        for _ in range(3):
            say("x")
            ids.append(ask(client, "a")["id"])
        assert [client.get(f"{PATH}/{one}").status_code for one in ids] == [404, 200, 200]
        store = service_of(client).responses
        assert len(store) == 2
    with serving(max_stored_response_bytes=1000) as client:
        say("x")
        error_of(client.get(f"{PATH}/{ask(client, 'a')['id']}"), 404)
        assert service_of(client).responses.bytes == 0
    with serving(response_store_seconds=0.0) as client:
        say("x")
        error_of(client.get(f"{PATH}/{ask(client, 'a')['id']}"), 404)


def test_refused_requests_leave_nothing_in_the_store(client: TestClient) -> None:
    before = len(service_of(client).responses)
    error_of(client.post(PATH, json={"input": "hi", "temperature": -1}), 400)
    error_of(client.post(PATH, json={"input": "x" * 5000}), 400)
    assert len(service_of(client).responses) == before


# --- a real server and OpenAI's client ------------------------------------------------------


@contextmanager
def listening(**settings: Any) -> Iterator[tuple[OpenAI, Any]]:
    """A server on a port of this machine, and OpenAI's client for it."""
    app = make_app(letters_engine(), ServerSettings(served_model_name=(NAME,), **settings))
    server = QuickServer(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=0) as client:
        yield client, app.state.service
    server.should_exit = True
    thread.join()
    app.state.service.shutdown()


def test_openais_client(say: Say) -> None:
    extra: dict[str, Any] = {"extra_body": {"stop_token_ids": [2]}, "max_output_tokens": 100}
    with listening(**PARSERS) as (client, _):
        say(f"<think>why</think>Well.{CALL}")
        body = client.responses.create(model=NAME, input="hi", tools=TOOLS, **extra)  # type: ignore[arg-type]
        assert body.output_text == "Well." and body.status == "completed"
        call = body.output[-1]
        assert call.type == "function_call" and json.loads(call.arguments) == {"a": 1}
        answer = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
        say("<think>so</think>Done.")
        with client.responses.stream(
            model=NAME,
            previous_response_id=body.id,
            input=[answer],
            **extra,  # type: ignore[list-item]
        ) as events:
            kinds = [event.type for event in events]
            final = events.get_final_response()
        assert final.output_text == "Done." and final.usage is not None
        assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
        assert "response.reasoning_text.delta" in kinds and "response.output_text.delta" in kinds
        assert client.responses.retrieve(final.id).output_text == "Done."
        client.responses.delete(final.id)
        with pytest.raises(NotFoundError):
            client.responses.retrieve(final.id)


def test_a_response_in_progress_can_be_cancelled(say: Say) -> None:
    with listening() as (client, service):
        say("abc" * 50, seconds=0.1)
        events = client.responses.create(model=NAME, input="hi", stream=True, max_output_tokens=150)
        first = next(iter(events))
        assert first.type == "response.created"
        assert client.responses.cancel(first.response.id).id == first.response.id
        last = list(events)[-1]
        assert last.type == "response.incomplete" and last.response.status == "cancelled"
        assert client.responses.retrieve(first.response.id).status == "cancelled"
        until(lambda: service.open_requests == 0)


def test_a_response_whose_client_leaves_is_cancelled(say: Say) -> None:
    with listening() as (client, service):
        say("abc" * 50, seconds=0.1)
        events = client.responses.create(model=NAME, input="hi", stream=True, max_output_tokens=150)
        response = next(iter(events)).response  # type: ignore[union-attr]
        events.close()
        until(lambda: client.responses.retrieve(response.id).status == "cancelled")
        until(lambda: service.open_requests == 0)
