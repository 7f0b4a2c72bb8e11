"""Structured output over HTTP: formats, structured_outputs, forced tool calls, reasoning."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from jengine.server.chat.endpoint import forced_calls
from jengine.server.chat.fields import ChatRequest
from tests.grammar.letters import EOS, ids, matcher
from tests.server.serving import error_of, events, letters, letters_engine, serving

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "y"]}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("f", "g")
]
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
# The letters of the scripted model may be spaces for long: grammars here have no whitespace.
COMPACT = {"json": SCHEMA, "disable_any_whitespace": True}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with serving(letters_engine(eos_token_ids=(EOS,))) as one:
        yield one


def post(client: TestClient, path: str, **body: Any) -> dict[str, Any]:
    if path == CHAT:
        body.setdefault("messages", HELLO)
    response = client.post(path, json={"temperature": 0, **body})
    assert response.status_code == 200, response.text
    return response.json()


def streamed(client: TestClient, **body: Any) -> list[dict[str, Any]]:
    body = {"messages": HELLO, "temperature": 0, "stream": True, **body}
    return [choice for one in events(client.post(CHAT, json=body)) for choice in one["choices"]]


@pytest.mark.parametrize(
    ("asked", "pattern"),
    [
        ({"regex": "[a-c]{4}"}, "[a-c]{4}"),
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"grammar": 'root ::= "q" [0-9] [0-9]'}, "q[0-9]{2}"),
        (COMPACT, r'\{"a":"[xy]"\}'),
    ],
)
def test_answers_follow_what_is_asked(
    client: TestClient, asked: dict[str, Any], pattern: str
) -> None:
    for path, prompt in ((CHAT, {}), (COMPLETIONS, {"prompt": "hello"})):
        body = post(client, path, structured_outputs=asked, max_tokens=40, **prompt)
        (choice,) = body["choices"]
        text = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
        assert re.fullmatch(pattern, text) and choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "schema", [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]},
               {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}],
)  # fmt: skip
def test_a_schema_that_refers_to_itself_alone_is_a_clients_fault(
    client: TestClient, schema: dict[str, Any]
) -> None:
    asked = {"prompt": "a", "max_tokens": 2, "structured_outputs": {"json": schema}}
    error = error_of(client.post(COMPLETIONS, json=asked), 400)
    assert error["message"].startswith("structured_outputs: ")


def test_a_stream_is_the_same_answer(client: TestClient) -> None:
    whole = post(client, CHAT, structured_outputs=COMPACT, max_tokens=40)
    choices = streamed(client, structured_outputs=COMPACT, max_tokens=40)
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    assert text == whole["choices"][0]["message"]["content"]
    assert choices[-1]["finish_reason"] == "stop"


def test_several_answers_have_a_matcher_each(client: TestClient) -> None:
    body = post(
        client, CHAT, structured_outputs={"regex": "[a-c]{4}"}, n=3, temperature=1, max_tokens=9
    )
    assert all(re.fullmatch("[a-c]{4}", one["message"]["content"]) for one in body["choices"])


def test_response_formats(client: TestClient) -> None:
    body = post(client, CHAT, response_format=FORMAT, max_tokens=400)
    (choice,) = body["choices"]
    if choice["finish_reason"] == "stop":
        assert json.loads(choice["message"]["content"])["a"] in "xy"
    assert choice["message"]["content"].lstrip()[:1] == "{"
    body = post(client, CHAT, response_format={"type": "json_object"}, max_tokens=3)
    assert body["choices"][0]["message"]["content"].startswith("{")
    plain = post(client, CHAT, response_format={"type": "text"}, max_tokens=3)
    assert plain["choices"][0] == post(client, CHAT, max_tokens=3)["choices"][0]


def test_responses_have_formats_too(client: TestClient) -> None:
    form = {"type": "json_schema", "name": "n", "schema": SCHEMA}
    body = post(client, RESPONSES, input="hi", text={"format": form}, max_output_tokens=60)
    assert body["output"][0]["content"][0]["text"].startswith("{")


def test_a_named_tool_is_called(client: TestClient) -> None:
    choice = {"type": "function", "function": {"name": "g"}}
    asked = {"tools": TOOLS, "tool_choice": choice, "max_tokens": 300}
    (found,) = post(client, CHAT, **asked)["choices"]
    (call,) = found["message"]["tool_calls"]
    assert call["function"]["name"] == "g" and found["message"]["content"] == ""
    deltas = [one["delta"] for one in streamed(client, **asked)]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert calls[0]["function"]["name"] == "g" and calls[0]["id"]
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert arguments == call["function"]["arguments"]
    assert found["finish_reason"] in ("stop", "length"), "the model did not choose to call"


def test_some_tool_must_be_called(client: TestClient) -> None:
    asked = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 400}
    (found,) = post(client, CHAT, parallel_tool_calls=False, **asked)["choices"]
    names = [call["function"]["name"] for call in found["message"].get("tool_calls") or ()]
    assert set(names) <= {"f", "g"} and len(names) <= 1
    if found["finish_reason"] != "length":
        assert found["finish_reason"] == "tool_calls" and names


@pytest.mark.parametrize(
    ("choice", "form"),
    [
        ("required", r'\[\{"name":"[fg]","parameters":\{"a":"[xy]"\}\}'),
        ({"type": "function", "function": {"name": "g"}}, r'\{"a":"[xy]"\}'),
    ],
)
def test_forced_calls_need_no_template_for_tools_and_are_compact(
    client: TestClient, choice: Any, form: str
) -> None:
    """Short limits hold whole calls, and a model may write JSON as it does by itself."""
    plain = "{% for message in messages %}{{ message.content }}{% endfor %}"
    with serving(
        letters_engine(eos_token_ids=(EOS,)), trust_request_chat_template=True
    ) as trusting:
        body = post(
            trusting, CHAT, tools=TOOLS, tool_choice=choice, chat_template=plain, max_tokens=50,
            return_prompt_text=True, return_token_ids=True,
        )  # fmt: skip
    (found,) = body["choices"]
    assert body["prompt_text"] == "hello"
    written = letters().decode(found["token_ids"])
    assert " " in written and re.match(form, re.sub("([:,]) ", r"\1", written))
    call = found["message"]["tool_calls"][0]
    assert json.loads(call["function"]["arguments"])["a"] in "xy"


def test_forced_calls_have_schemas_with_references_of_their_own() -> None:
    """Tools may use the same name for different things."""
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {
            "type": "object", "properties": {"a": {"$ref": f"#/{where}/x"}}, "required": ["a"],
            where: {"x": {"enum": [name]}}, "additionalProperties": False,
        }}}
        for name, where in (("f", "$defs"), ("g", "$defs"), ("h", "definitions"))
    ]  # fmt: skip
    forced = forced_calls(ChatRequest(messages=HELLO, tools=tools, tool_choice="required"))
    assert forced is not None
    for name, value in itertools.product("fgh", repeat=2):
        text = f'[{{"name":"{name}","parameters":{{"a":"{value}"}}}}]'
        assert matcher(forced.spec()).advance(ids(text)) == (name == value)


TAG = {"type": "structural_tag", "format": {
    "type": "tag", "begin": "<f>", "end": "</f>",
    "content": {"type": "regex", "pattern": "[xy]{3}"},
}}  # fmt: skip
OLDER_TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": {"enum": ["x", "y"]}, "end": "</f>"}],
    "triggers": ["<f"],
}
STRICT = {
    "type": "json_schema",
    "json_schema": {"name": "n", "strict": True, "schema": {"enum": ["abc", "abd", 12]}},
}
VALUES = ('"abc"', '"abd"', "12")


def texts_of(client: TestClient, path: str, **body: Any) -> tuple[list[str], list[str]]:
    """The text of each answer, whole and as it was streamed."""
    body = {"messages": HELLO, **body} if path == CHAT else {"prompt": "hello", **body}
    whole = client.post(path, json=body)
    assert whole.status_code == 200, whole.text
    pieces = [""] * body.get("n", 1)
    for event in events(client.post(path, json={**body, "stream": True})):
        for choice in event["choices"]:
            piece = choice["delta"].get("content") if path == CHAT else choice["text"]
            pieces[choice["index"]] += piece or ""
    answers = whole.json()["choices"]
    return [one["message"]["content"] if path == CHAT else one["text"] for one in answers], pieces


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("more", [{}, {"n": 2, "temperature": 1, "seed": 4}, {"logprobs": 1}])
def test_formats_hold_whatever_else_is_asked(
    client: TestClient, path: str, more: dict[str, Any]
) -> None:
    if path == CHAT and "logprobs" in more:
        more = {"logprobs": True, "top_logprobs": 1}
    for form, pattern in ((STRICT, "|".join(VALUES)), (TAG, "<f>[xy]{3}</f>")):
        whole, pieces = texts_of(client, path, response_format=form, max_tokens=40, **more)
        assert whole == pieces and len(whole) == more.get("n", 1)
        assert all(re.fullmatch(pattern, text.strip()) for text in whole), whole


def test_log_probabilities_are_those_of_each_token_of_a_format(client: TestClient) -> None:
    body = post(
        client, CHAT, response_format=TAG, max_tokens=40, logprobs=True, top_logprobs=2
    )  # fmt: skip
    (choice,) = body["choices"]
    tokens = [one["token"] for one in choice["logprobs"]["content"]]
    assert "".join(tokens).removesuffix("</s>") == choice["message"]["content"]


def test_stop_strings_end_an_answer_before_its_format_does(client: TestClient) -> None:
    for path in (CHAT, COMPLETIONS):
        whole, pieces = texts_of(client, path, response_format=TAG, max_tokens=40, stop=["</"])
        assert whole == pieces and re.fullmatch("<f>[xy]{3}", whole[0])
    body = post(client, CHAT, response_format=TAG, max_tokens=40, stop=["</"])
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["choices"][0]["stop_reason"] == "</"


def test_older_tags_leave_text_free_up_to_a_trigger(client: TestClient) -> None:
    whole, pieces = texts_of(client, CHAT, response_format=OLDER_TAG, max_tokens=30)
    assert whole == pieces
    for tag in re.findall("<f.*", whole[0]):
        assert '<f>"x"</f>'.startswith(tag[:8].replace("y", "x")), tag


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "g"}}])
def test_forced_calls_are_streamed_as_they_are_answered(client: TestClient, choice: Any) -> None:
    """For each of several answers, with log-probabilities of the tokens that they are made of."""
    asked = {"tools": TOOLS, "tool_choice": choice, "max_tokens": 120, "n": 2, "seed": 3,
             "temperature": 1, "logprobs": True, "parallel_tool_calls": False}  # fmt: skip
    body = post(client, CHAT, **asked)
    found: list[dict[str, str]] = [{}, {}]
    reasons = ["", ""]
    for one in streamed(client, **asked):
        place = one["index"]
        assert not one["delta"].get("content")
        for call in one["delta"].get("tool_calls", ()):
            for name, text in call["function"].items():
                found[place][name] = found[place].get(name, "") + text
        reasons[place] = one["finish_reason"] or reasons[place]
    for answer, streamed_call, reason in zip(body["choices"], found, reasons, strict=True):
        calls = answer["message"].get("tool_calls") or []
        assert [one["function"] for one in calls] == ([streamed_call] if streamed_call else [])
        assert answer["message"]["content"] == "" and answer["finish_reason"] == reason
        assert answer["logprobs"]["content"]


def test_the_grammar_begins_after_the_reasoning() -> None:
    engine = letters_engine(eos_token_ids=(EOS,))
    with serving(engine, reasoning_parser="deepseek_r1") as client:
        body = post(client, CHAT, structured_outputs={"regex": "[a-c]{4}"}, max_tokens=12)
        free = post(client, CHAT, max_tokens=12)
        assert body["choices"][0]["message"] == free["choices"][0]["message"], "no </think> yet"
        messages = [*HELLO, {"role": "assistant", "content": "<think>hm</think>"}]
        body = post(
            client, CHAT, messages=messages, continue_final_message=True, max_tokens=12,
            add_generation_prompt=False, structured_outputs={"regex": "[a-c]{4}"},
        )  # fmt: skip
        content = body["choices"][0]["message"]["content"]
        assert re.fullmatch("[a-c]{4}", content)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", "expected one of text"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "no json"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema", "with a JSON schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {
                "schema": {"type": "array", "uniqueItems": True}}}},
            "response_format", "response_format: the keyword uniqueItems",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "expected exactly one"),
        ({"structured_outputs": {"regx": "a"}}, "structured_outputs", "Did you mean 'regex'"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs", "unclosed group"),
        ({"structured_outputs": {"regex": "a" * (2 << 20)}}, "structured_outputs", "the most"),
        ({"structured_outputs": {"regex": "a"}, "response_format": FORMAT}, "structured_outputs",
         "Send one of them"),
    ],
)  # fmt: skip
def test_what_is_refused(client: TestClient, body: dict[str, Any], param: str, words: str) -> None:
    for stream in (False, True):
        response = client.post(COMPLETIONS, json={"prompt": "a", "stream": stream, **body})
        error = error_of(response, 400)
        assert error["param"] == param and words in error["message"]


def test_tools_with_bad_schemas_are_named(client: TestClient) -> None:
    bad = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": bad}}]
    body = {"messages": HELLO, "tools": tools, "tool_choice": "required"}
    error = error_of(client.post(CHAT, json=body), 400)
    assert error["param"] == "tools" and "uniqueItems" in error["message"]


def test_a_format_of_texts_says_nothing_of_forced_calls(client: TestClient) -> None:
    asked = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 60}
    (alone,) = post(client, CHAT, **asked)["choices"]
    (both,) = post(client, CHAT, **asked, response_format=FORMAT)["choices"]
    functions = [
        [call["function"] for call in one["message"].get("tool_calls", ())] for one in (alone, both)
    ]
    assert functions[0] == functions[1] != []
    refused = {"messages": HELLO, **asked, "structured_outputs": {"regex": "a"}}
    assert error_of(client.post(CHAT, json=refused), 400)["param"] == "tool_choice"


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_grows_too_large_while_it_runs_is_the_clients(
    client: TestClient, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    body = {"prompt": "a", "structured_outputs": {"regex": "(a{1000}){1000}"}, "stream": stream}
    error = error_of(client.post(COMPLETIONS, json=body), 400)
    # On a busy machine its time is over before that.
    reason = re.compile("too many expressions|takes longer than")
    assert reason.search(error["message"])
    lines = [one.getMessage() for one in caplog.records if one.name.startswith("jengine")]
    assert len(lines) == 1 and reason.search(lines[0])
