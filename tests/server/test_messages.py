"""/v1/messages and /v1/messages/count_tokens: blocks in and out, streams equal to wholes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from tests.server.serving import NAME, answer_with, letters, serving
from tests.server.test_responses import failing_at

PATH = "/v1/messages"
HELLO = [{"role": "user", "content": "hi"}]
TOOLS = [{"name": "f", "description": "does it", "input_schema": {"type": "object"}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
Say = Callable[..., None]


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Say:
    """Makes the scripted model answer with a text, then with `!`; each token may take time."""

    def script(text: str, seconds: float = 0.0) -> None:
        answer_with(monkeypatch, letters().encode(f"{text}!", add_special_tokens=False), seconds)

    return script


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with serving(
        tool_call_parser="hermes", reasoning_parser="deepseek_r1", enable_auto_tool_choice=True
    ) as one:
        yield one


def post(client: TestClient, **fields: Any) -> httpx2.Response:
    body = {"messages": HELLO, "max_tokens": 250, "stop_sequences": ["!"], **fields}
    return client.post(PATH, json=body)


def ask(client: TestClient, **fields: Any) -> dict[str, Any]:
    response = post(client, **fields)
    assert response.status_code == 200, response.text
    return response.json()


def stream(client: TestClient, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream, whose names are those of their data."""
    response = post(client, stream=True, **fields)
    assert response.status_code == 200, response.text
    events = []
    for frame in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def error_of(response: httpx2.Response, status: int) -> dict[str, Any]:
    body = response.json()
    assert response.status_code == status and body["type"] == "error", body
    assert set(body["error"]) == {"type", "message"}
    return body["error"]


def added_up(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream adds up to."""
    message: dict[str, Any] = {}
    texts: list[str] = []
    for event in events:
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
                texts = []
            case "content_block_delta":
                kind, text = event["delta"].values()
                assert kind.removesuffix("_delta") in ("text", "thinking", "input_json")
                texts.append(text)
            case "content_block_stop":
                block, text = message["content"][event["index"]], "".join(texts)
                if block["type"] == "tool_use":
                    block["input"] = json.loads(text)
                else:
                    block[block["type"]] = text
            case "message_delta":
                message |= event["delta"]
                assert event["usage"].keys() == message["usage"].keys(), "all counts, at the end"
                message["usage"] |= event["usage"]
            case kind:
                assert kind == "message_stop"
    return message


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what differs from one time to the next."""
    blocks = [{name: value for name, value in block.items() if name != "id"}
              for block in message["content"]]  # fmt: skip
    return {**message, "id": "", "content": blocks}


def test_a_message(client: TestClient, say: Say) -> None:
    say("</think>hello")
    body = ask(client, system="be brief", metadata={"user_id": "x"})
    assert body["id"].startswith("msg_") and body["type"] == "message"
    assert body["role"] == "assistant" and body["model"] == NAME
    assert body["content"] == [{"type": "text", "text": "hello"}]
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", "!")
    prompt = "<s>system:be brief</s><s>user:hi</s><s>assistant:"
    count = len(letters().encode(prompt, add_special_tokens=False))
    assert body["usage"]["input_tokens"] == count
    assert body["usage"]["output_tokens"] == len("</think>hello!")


def test_thinking_and_calls_are_blocks(client: TestClient, say: Say) -> None:
    say(f"<think>why</think>Well.{CALL}")
    body = ask(client, tools=TOOLS)
    thinking, text, call = body["content"]
    assert thinking == {"type": "thinking", "thinking": "why", "signature": ""}
    assert text == {"type": "text", "text": "Well."}
    assert call["type"] == "tool_use" and call["name"] == "f" and call["input"] == {"a": 1}
    assert call["id"]
    say(f"</think>{CALL}{CALL}")
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert len(ask(client, tools=TOOLS, tool_choice=choice)["content"]) == 1


def test_a_call_that_is_cut_off(client: TestClient, say: Say) -> None:
    say(f"</think>{CALL}")
    body = ask(client, tools=TOOLS, max_tokens=50)
    assert body["stop_reason"] == "max_tokens" and body["content"][0]["input"] == {}


@pytest.mark.parametrize(
    "text", ["</think>hello", "", "<think>why</think>\n\nso", f"<think>a</think>b{CALL}\n{CALL}"]
)
def test_a_stream_adds_up_to_the_whole_message(client: TestClient, say: Say, text: str) -> None:
    say(text)
    whole = ask(client, tools=TOOLS)
    say(text)
    events = stream(client, tools=TOOLS)
    assert events[0]["type"] == "message_start" and events[-1] == {"type": "message_stop"}
    assert plain(added_up(events)) == plain(whole)


def test_an_error_in_a_stream_is_told(
    client: TestClient, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    say("a" * 200, seconds=0.005)
    monkeypatch.setattr("jengine.server.serving.generation.refuse_failed", failing_at(2))
    *events, last = stream(client)
    assert last == {"type": "error", "error": {"type": "api_error", "message": "It broke."}}
    assert events[0]["type"] == "message_start"
    monkeypatch.setattr("jengine.server.serving.generation.refuse_failed", failing_at(1))
    assert error_of(post(client, stream=True), 500)["message"] == "It broke."


def test_blocks_as_input(client: TestClient, say: Say) -> None:
    say("</think>x")
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}
    thinking = {"type": "thinking", "thinking": "hm", "signature": ""}
    said = {"type": "text", "text": "yes", "cache_control": {"type": "ephemeral"}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "3"}]}
    messages = [
        *HELLO,
        {"role": "assistant", "content": [thinking, said, call]},
        {"role": "user", "content": [result, {"type": "text", "text": "so"}]},
    ]
    body = {"messages": messages, "system": [{"type": "text", "text": "abc"}]}
    prompt = "<s>system:abc</s><s>user:hi</s><s>assistant:yes</s><s>tool:3</s><s>user:so</s>"
    count = len(letters().encode(prompt + "<s>assistant:", add_special_tokens=False))
    assert ask(client, **body)["usage"]["input_tokens"] == count
    counted = client.post(f"{PATH}/count_tokens", json={"model": NAME, **body})
    assert counted.json() == {"input_tokens": count}


def test_the_start_of_an_answer_is_continued(client: TestClient, say: Say) -> None:
    say("</think>c")
    body = ask(client, messages=[*HELLO, {"role": "assistant", "content": "ab"}])
    prompt = "<s>user:hi</s><s>assistant:ab"
    count = len(letters().encode(prompt, add_special_tokens=False))
    assert body["usage"]["input_tokens"] == count
    assert body["content"] == [{"type": "text", "text": "c"}]


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"messages": []}, 400, "messages"),
        ({"messages": None, "system": "x"}, 400, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, 400, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400, "content[0].text"),
        ({"max_tokens": None}, 400, "max_tokens"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"temperature": -1}, 400, "temperature"),
        ({"thinking": {"type": "maybe"}}, 400, "thinking.type"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 60}, "max_tokens": 60},
            400,
            "less than max_tokens",
        ),
        ({"vllm_xargs": {"a": 1}}, 400, "no logits processor"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, 400, "tools[0]"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}},
            400,
            "the keyword not",
        ),
        ({"model": "other"}, 404, "`other`"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, 400, "context length"),
    ],
)
def test_what_is_refused(client: TestClient, body: dict[str, Any], status: int, text: str) -> None:
    for streamed in (False, True):
        error = error_of(post(client, stream=streamed, **body), status)
        assert text in error["message"]
        kinds = {400: "invalid_request_error", 404: "not_found_error"}
        assert error["type"] == kinds[status]


def test_counting_refuses_what_a_message_would(client: TestClient) -> None:
    response = client.post(f"{PATH}/count_tokens", json={"messages": []})
    assert error_of(response, 400)["type"] == "invalid_request_error"


def test_keys_in_the_header_of_anthropics_clients(say: Say) -> None:
    with serving(api_key=("secret",)) as client:
        say("x")
        body = {"messages": HELLO, "max_tokens": 2}
        assert client.post(PATH, json=body).status_code == 401
        assert client.post(PATH, json=body, headers={"x-api-key": "secret"}).status_code == 200


def test_cached_tokens_are_told_apart(say: Say) -> None:
    with serving(enable_prompt_tokens_details=True) as client:
        long = [{"role": "user", "content": "abcdefgh" * 8}]
        say("x")
        first = ask(client, messages=long)["usage"]
        say("x")
        second = ask(client, messages=long)["usage"]
        assert first["cache_read_input_tokens"] == 0 < second["cache_read_input_tokens"]
        assert first["cache_creation_input_tokens"] > second["cache_creation_input_tokens"]
        totals = [
            sum(one[f"{kind}input_tokens"] for kind in ("", "cache_creation_", "cache_read_"))
            for one in (first, second)
        ]
        assert totals[0] == totals[1]
