"""POST /v1/chat/completions: messages, reasoning, tool calls, streams equal to wholes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from jengine.logprobs import Logprob
from jengine.server.formats.logprobs import LogprobFormat
from jengine.server.version import FINGERPRINT
from tests.engine.scripted import told
from tests.server.serving import answer_with, error_of, events, letters, service_of, serving

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with serving() as one:
        yield one


def chat(client: TestClient, **body: Any) -> dict[str, Any]:
    response = client.post(PATH, json={"messages": HELLO, "temperature": 0, **body})
    assert response.status_code == 200, response.text
    return response.json()


def answer_to(prompt: str, count: int) -> str:
    return letters().decode(told(letters().encode(prompt, False), count), skip_special_tokens=True)


def test_a_message(client: TestClient) -> None:
    body = chat(client, max_tokens=7)
    (choice,) = body["choices"]
    expected = answer_to("<s>user:hello</s><s>assistant:", 7)
    assert choice["message"]["role"] == "assistant" and choice["message"]["content"] == expected
    assert "tool_calls" not in choice["message"] and choice["message"]["refusal"] is None
    assert choice["finish_reason"] == "length"
    assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-")
    assert body["usage"]["completion_tokens"] == 7


def test_a_whole_body_has_every_field_in_the_order_of_vllm(client: TestClient) -> None:
    body = chat(client, max_tokens=1)
    assert list(body) == [
        "id", "object", "created", "model", "choices", "service_tier", "system_fingerprint",
        "usage", "prompt_logprobs", "prompt_token_ids", "prompt_text", "kv_transfer_params",
        "ec_transfer_params", "metrics",
    ]  # fmt: skip
    assert list(body["choices"][0]) == [
        "index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids",
        "routed_experts",
    ]  # fmt: skip


def test_the_newer_limit_wins(client: TestClient) -> None:
    body = chat(client, max_tokens=7, max_completion_tokens=3)
    assert body["usage"]["completion_tokens"] == 3


def test_parts_of_text_and_developers(client: TestClient) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    messages = [{"role": "developer", "content": parts}]
    body = chat(client, messages=messages, return_prompt_text=True)
    assert body["prompt_text"] == "<s>system:hel\nlo</s><s>assistant:"


def test_a_message_is_continued(client: TestClient) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "abc"}]
    body = chat(
        client, messages=messages, continue_final_message=True, add_generation_prompt=False,
        echo=True, max_tokens=3, return_prompt_text=True,
    )  # fmt: skip
    assert body["prompt_text"] == "<s>user:hello</s><s>assistant:abc"
    content = body["choices"][0]["message"]["content"]
    assert content == "abc" + answer_to("<s>user:hello</s><s>assistant:abc", 3)


def test_variables_of_the_template() -> None:
    with serving(default_chat_template_kwargs={"thinking": True, "unread": 1}) as client:
        usual = chat(client, return_prompt_text=True)["prompt_text"]
        assert usual.endswith("assistant:!")
        off = chat(client, return_prompt_text=True, chat_template_kwargs={"thinking": False})
        assert off["prompt_text"].endswith("assistant:")
        response = client.post(
            PATH, json={"messages": HELLO, "chat_template_kwargs": {"enable_thinking": True}}
        )
        named = response.headers["x-jengine-ignored-fields"]
        assert named == "chat_template_kwargs.enable_thinking"


@pytest.mark.parametrize(
    "name", ["tokenize", "return_tensors", "chat_template", "tools", "messages", "padding"]
)
def test_variables_that_are_never_the_requests(client: TestClient, name: str) -> None:
    body = {"messages": HELLO, "chat_template_kwargs": {name: True}}
    assert error_of(client.post(PATH, json=body), 400)["param"] == "chat_template_kwargs"


def test_a_template_of_the_request_is_a_program_and_refused() -> None:
    body = {"messages": HELLO, "chat_template": "{{ 7 * 191 }}", "return_prompt_text": True}
    with serving() as client:
        assert error_of(client.post(PATH, json=body), 400)["param"] == "chat_template"
    with serving(trust_request_chat_template=True) as client:
        assert client.post(PATH, json=body).json()["prompt_text"] == "1337"
        attack = {**body, "chat_template": "{{ ''.__class__.__mro__[1].__subclasses__() }}"}
        assert "0x" not in error_of(client.post(PATH, json=attack), 400)["message"]


def test_log_probabilities(client: TestClient) -> None:
    (choice,) = chat(client, max_tokens=3, logprobs=True, top_logprobs=2)["choices"]
    tokens = choice["logprobs"]["content"]
    assert "".join(one["token"] for one in tokens) == choice["message"]["content"]
    for one in tokens:
        assert bytes(one["bytes"]).decode() == one["token"] and len(one["top_logprobs"]) == 2


def test_a_token_that_is_not_among_the_likeliest_is_first(client: TestClient) -> None:
    """Also the one that ends an answer, as in vLLM."""
    body = chat(client, max_tokens=9, stop_token_ids=[2], logprobs=True, top_logprobs=2)
    format = LogprobFormat(letters(), as_ids=False)
    table = {2: Logprob(-5.0, 9, "</s>"), 7: Logprob(-0.1, 1, "a"), 8: Logprob(-0.2, 2, "b")}
    (entry,) = format.chat([2], [table], 2).content
    assert [one.token for one in entry.top_logprobs] == ["</s>", "a"]
    for one in body["choices"][0]["logprobs"]["content"]:
        assert one["top_logprobs"][0]["token"] == one["token"]


def test_usage_tells_what_the_prompt_added_to_the_cache() -> None:
    asked = {"messages": [{"role": "user", "content": "x" * 40}], "max_tokens": 1}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    with serving(enable_prompt_tokens_details=True) as client:
        block = service_of(client).live.engine.cache.block_size
        first = chat(client, **asked)["usage"]
        whole = first["prompt_tokens"] // block * block
        assert first["prompt_tokens_details"] == {"cached_tokens": 0, "created_cache_tokens": whole}
        second = events(client.post(PATH, json={**asked, **options}))[-1]["usage"]
    details = second["prompt_tokens_details"]
    assert details["cached_tokens"] and sum(details.values()) == whole


def test_a_token_that_is_written_as_an_id_has_the_bytes_of_its_text(client: TestClient) -> None:
    asked = {"max_tokens": 3, "temperature": 0, "logprobs": True}
    plain = chat(client, **asked)["choices"][0]["logprobs"]["content"]
    as_ids = chat(client, **asked, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]
    assert [one["bytes"] for one in as_ids["content"]] == [one["bytes"] for one in plain]
    ids = [letters().encode(one["token"], add_special_tokens=False) for one in plain]
    assert [one["token"] for one in as_ids["content"]] == [f"token_id:{own}" for (own,) in ids]


def test_the_events_of_a_stream_letter_by_letter(client: TestClient) -> None:
    body = {
        "messages": HELLO, "max_tokens": 1, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    response = client.post(PATH, json=body)
    first = events(response)[0]
    head = (
        f'data: {{"id":"{first["id"]}","object":"chat.completion.chunk",'
        f'"created":{first["created"]},"model":"letters","choices":['
    )
    text = answer_to("<s>user:hello</s><s>assistant:", 1)
    assert response.text.split("\n\n") == [
        head + '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
        '"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}',
        head + f'{{"index":0,"delta":{{"content":"{text}"}},"logprobs":null,'
        '"finish_reason":"length","stop_reason":null,"token_ids":null}]}',
        head + '],"usage":{"prompt_tokens":23,"total_tokens":24,"completion_tokens":1},'
        f'"system_fingerprint":"{FINGERPRINT}"}}',
        "data: [DONE]",
        "",
    ]


def test_a_stream(client: TestClient) -> None:
    body = {"messages": HELLO, "max_tokens": 6, "temperature": 0, "stream": True}
    first, *rest = events(client.post(PATH, json=body))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["object"] == "chat.completion.chunk"
    text = "".join(one["choices"][0]["delta"].get("content", "") for one in rest)
    assert text == chat(client, max_tokens=6)["choices"][0]["message"]["content"]
    assert rest[-1]["choices"][0]["finish_reason"] == "length"
    assert all("usage" not in one for one in rest)
    for *_, keys in (list(one["choices"][0]) for one in rest):
        assert keys == "token_ids"


def joined(chunks: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The messages that the deltas of a stream add up to."""
    messages: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            message = messages.setdefault(choice["index"], {"calls": {}})
            for name, value in choice["delta"].items():
                if name == "tool_calls":
                    for call in value:
                        one = message["calls"].setdefault(call["index"], {"arguments": ""})
                        one["arguments"] += call["function"]["arguments"]
                        one.update({key: call[key] for key in ("type",) if key in call})
                        if "name" in call["function"]:
                            one["name"] = call["function"]["name"]
                else:
                    message[name] = message.get(name, "") + value
            message["finish_reason"] = choice["finish_reason"]
    return messages


ANSWERS = [
    "plain text",
    "<think>why</think>\n\nbecause",
    'before <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
    '<think>x</think><tool_call>\n{"name": "f", "arguments": {"a": [1, 2]}}\n</tool_call>'
    '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
    "<tool_call>broken",
]


@pytest.mark.parametrize("text", ANSWERS)
@pytest.mark.parametrize("more", [{}, {"parallel_tool_calls": False}, {"include_reasoning": False}])
def test_a_stream_adds_up_to_the_whole_message(
    text: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text as the model would write it, once asked for the whole and once for a stream."""
    ids = [*letters().encode(text, add_special_tokens=False), 2]
    parsers = {"tool_call_parser": "hermes", "reasoning_parser": "deepseek_r1"}
    body = {"messages": HELLO, "tools": TOOLS, "temperature": 0, "max_tokens": 300, **more}
    body["stop_token_ids"] = [2]

    def ask(**fields: Any) -> Any:
        answer_with(monkeypatch, ids)
        with serving(**parsers, enable_auto_tool_choice=True) as client:
            return client.post(PATH, json={**body, **fields})

    whole = ask().json()["choices"][0]
    streamed = joined(events(ask(stream=True)))[0]
    message = whole["message"]
    assert streamed["finish_reason"] == whole["finish_reason"]
    assert streamed.get("content", "") == (message["content"] or "")
    assert streamed.get("reasoning") == message["reasoning"] == message["reasoning_content"]
    calls = message.get("tool_calls", [])
    assert [(one["name"], one["arguments"]) for one in streamed["calls"].values()] == [
        (one["function"]["name"], one["function"]["arguments"]) for one in calls
    ]
    assert (whole["finish_reason"] == "tool_calls") == bool(calls)


@pytest.mark.parametrize(
    ("body", "param", "status"),
    [
        ({"messages": []}, "messages", 400),
        ({"messages": None}, "messages", 400),
        ({"messages": "hello"}, "messages", 400),
        ({"messages": [{"content": "x"}]}, "messages[0].role", 400),
        ({"messages": [{"role": "user", "content": [{"type": "smell", "smell": "x"}]}]},
         "messages", 400),
        ({"messages": ["x"]}, "messages[0]", 400),
        ({"top_logprobs": 2}, "top_logprobs", 400),
        ({"max_tokens": 0}, "max_tokens", 400),
        ({"max_completion_tokens": 0}, "max_completion_tokens", 400),
        ({"max_completion_tokens": 5000}, "max_completion_tokens", 400),
        ({"max_tokens": 5000}, "max_tokens", 400),
        ({"tools": []}, "tools", 400),
        ({"tools": TOOLS}, "tool_choice", 400),
        ({"tool_choice": "auto"}, "tool_choice", 400),
        ({"tools": TOOLS, "tool_choice": {"function": {"name": "g"}}}, "tool_choice", 400),
        ({"tools": [{"type": "function"}], "tool_choice": "none"}, "tools[0]", 400),
        *(
            (
                {"tools": [{"function": {"name": "g", field: 5}}], "tool_choice": "none"},
                f"tools[0].function.{field}",
                400,
            )
            for field in ("description", "parameters", "strict")
        ),
        ({"reasoning_effort": "huge"}, "reasoning_effort", 400),
        ({"continue_final_message": True}, "add_generation_prompt", 400),
        ({"add_generation_prompt": True, "continue_final_message": True},
         "add_generation_prompt", 400),
    ],
)  # fmt: skip
def test_what_is_refused(client: TestClient, body: dict[str, Any], param: str, status: int) -> None:
    response = client.post(PATH, json={"messages": HELLO, **body})
    assert error_of(response, status)["param"] == param


def test_parts_that_are_text_by_another_name(client: TestClient) -> None:
    parts = [{"type": "refusal", "refusal": "no"}, {"type": "thinking", "thinking": "hm"},
             {"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}]  # fmt: skip
    talk = [*HELLO, {"role": "assistant", "content": parts}, *HELLO]
    body = chat(client, messages=talk, return_prompt_text=True)
    assert "<s>assistant:no\nhm\na\nb</s>" in body["prompt_text"]
    talk[1] = {"role": "assistant", "content": [{"type": "refusal", "text": "no"}]}
    assert error_of(client.post(PATH, json={"messages": talk}), 400)["param"] == "messages"


def test_an_echo_has_the_prompts_scores(client: TestClient) -> None:
    assert len(chat(client, echo=True, max_tokens=1)["prompt_logprobs"]) > 5
    assert chat(client, echo=False, max_tokens=1)["prompt_logprobs"] is None


def test_no_top_logprobs_need_no_logprobs(client: TestClient) -> None:
    (choice,) = chat(client, logprobs=False, top_logprobs=0, max_tokens=1)["choices"]
    assert choice["logprobs"] is None


def test_arguments_of_earlier_calls_are_objects_for_the_template() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}]
    template = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments.a }}"
    template += "{% endfor %}.{% endfor %}"
    with serving(trust_request_chat_template=True) as client:
        body = chat(client, messages=messages, chat_template=template, return_prompt_text=True)
        assert body["prompt_text"] == ".1."
        template = template.replace(".arguments.a", ".arguments")
        for broken in ("{broken", "[1]", '"text"', "", None):  # the conversation goes on
            call["function"]["arguments"] = broken  # type: ignore[index]
            body = chat(client, messages=messages, chat_template=template, return_prompt_text=True)
            assert body["prompt_text"] == ".{}."
