"""OpenAI's own Python client against `jengine serve`, as a program with the demo model."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Literal

import openai
import pydantic
import pytest

from jengine.bench.serve.launched import our_server

pytestmark = pytest.mark.slow
FLAGS = ["--max-num-seqs", "4", "--max-model-len", "512", "--api-key", "key", "--enforce-eager"]
# A small model may write whitespace for as long as it is allowed.
FLAGS += ["--structured-outputs-config.disable_any_whitespace", "true"]
FLAGS += ["--trust-request-chat-template"]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
ANSWERS = json.dumps(
    {
        "weather": f"<think>\nhm\n</think>\n\n{CALL}",
        "think": "<think>\nlet me see\n</think>\n\nIt is 4.",
    }
)
# The demo model's own shows no tools.
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}assistant:"
)
SCRIPTED = [
    "--chat-template", TEMPLATE,
    "--executor", "tests.server.scripted:Executor", "--executor-options.answers", ANSWERS,
    "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
    "--reasoning-parser", "deepseek_r1",
]  # fmt: skip


class Verdict(pydantic.BaseModel):
    """What a structured answer holds."""

    answer: Literal["yes", "no"]
    sure: bool


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
ASK = [{"role": "user", "content": "What is 23 + 45?"}]


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with our_server("demo", FLAGS) as url:
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0)


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    folder = str(tmp_path_factory.mktemp("batches"))
    with our_server("demo", [*FLAGS, *SCRIPTED, "--batch-dir", folder]) as url:
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == ("demo", "model", "jengine")
    assert client.models.retrieve("demo").id == "demo"
    with pytest.raises(openai.NotFoundError, match="`gpt`"):
        client.models.retrieve("gpt")


def test_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="demo", messages=ASK, temperature=0)  # type: ignore[arg-type]
    choice = whole.choices[0]
    assert (choice.message.role, choice.finish_reason) == ("assistant", "stop")
    assert "68" in (choice.message.content or "")
    assert whole.usage and whole.usage.total_tokens == (
        whole.usage.prompt_tokens + whole.usage.completion_tokens
    )
    stream = client.chat.completions.create(
        model="demo", messages=ASK, temperature=0, stream=True,  # type: ignore[arg-type]
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == choice.message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage == whole.usage and not chunks[-1].choices
    assert {chunk.id for chunk in chunks} == {chunks[0].id} and chunks[0].id.startswith("chatcmpl-")


def test_completions_of_text_and_tokens(client: openai.OpenAI) -> None:
    given = {"model": "demo", "max_tokens": 12, "temperature": 0}
    prompts = ["Once upon a time", "In the forest"]
    both = client.completions.create(prompt=prompts, **given)  # type: ignore[call-overload]
    assert [choice.index for choice in both.choices] == [0, 1]
    alone = client.completions.create(prompt=prompts[1], **given)  # type: ignore[call-overload]
    assert alone.choices[0].text == both.choices[1].text
    stream = client.completions.create(prompt=prompts[1], stream=True, **given)  # type: ignore[call-overload]
    assert "".join(chunk.choices[0].text for chunk in stream) == alone.choices[0].text
    ids = client.completions.create(prompt=[[300, 301], [302]], **given)  # type: ignore[call-overload]
    assert len(ids.choices) == 2 and ids.usage.prompt_tokens == 3


def test_several_answers_and_seeds(client: openai.OpenAI) -> None:
    def texts(seed: int) -> list[str]:
        found = client.completions.create(
            model="demo", prompt="Once upon a time", n=3, temperature=1, seed=seed, max_tokens=16
        )
        assert [choice.index for choice in found.choices] == [0, 1, 2]
        return [choice.text for choice in found.choices]

    assert len(set(texts(1))) == 3
    assert texts(1) == texts(1) != texts(2)


def test_log_probabilities(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(
        model="demo", messages=ASK, temperature=0, logprobs=True, top_logprobs=3, max_tokens=6  # type: ignore[arg-type]
    )  # fmt: skip
    assert chat.choices[0].logprobs and chat.choices[0].logprobs.content
    entries = chat.choices[0].logprobs.content
    assert len(entries) == 6 and all(len(entry.top_logprobs) == 3 for entry in entries)
    assert all(entry.top_logprobs[0].token == entry.token for entry in entries), "greedy"
    assert "".join(entry.token for entry in entries) == chat.choices[0].message.content
    text = client.completions.create(
        model="demo", prompt="Once upon a time", logprobs=2, max_tokens=3, temperature=0, echo=True
    )
    found = text.choices[0].logprobs
    assert found and found.token_logprobs and found.tokens and found.top_logprobs
    assert found.token_logprobs[0] is None and all(one <= 0 for one in found.token_logprobs[1:])  # type: ignore[operator]
    assert text.choices[0].text.startswith("Once upon a time")


def test_stop_strings(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(model="demo", messages=ASK, temperature=0, stop=["="])  # type: ignore[arg-type]
    assert found.choices[0].finish_reason == "stop"
    assert "=" not in (found.choices[0].message.content or "=")


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"model": "gpt-5"}, openai.NotFoundError, "gpt-5"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"top_logprobs": 2}, openai.BadRequestError, "logprobs"),
        (
            {"messages": [{"role": "user", "content": "word " * 2000}]},
            openai.BadRequestError,
            "maximum context length is 512 tokens",
        ),
    ],
)
def test_errors_have_their_class_and_name_the_field(
    client: openai.OpenAI, given: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        client.chat.completions.create(**{"model": "demo", "messages": ASK, **given})  # type: ignore[call-overload]


def test_a_wrong_key(client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="other").models.list()


def test_tool_calls_whole_and_streamed(scripted: openai.OpenAI) -> None:
    given = {
        "model": "demo", "messages": [{"role": "user", "content": "the weather"}],
        "tools": [TOOL], "tool_choice": "auto", "temperature": 0,
    }  # fmt: skip
    whole = scripted.chat.completions.create(**given)  # type: ignore[call-overload]
    assert whole.choices[0].finish_reason == "tool_calls"
    (call,) = whole.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    with scripted.chat.completions.stream(**given) as stream:  # type: ignore[call-overload]
        message = stream.get_final_completion().choices[0].message
    (streamed,) = message.tool_calls
    assert streamed.function.name == "weather"
    assert json.loads(streamed.function.arguments) == {"city": "Paris"}


def test_reasoning(scripted: openai.OpenAI) -> None:
    found = scripted.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "think"}], temperature=0
    )
    message = found.choices[0].message
    assert (message.content or "").strip() == "It is 4."
    assert "let me see" in message.model_extra["reasoning"]  # type: ignore[index]


def test_what_is_not_built_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        client.embeddings.create(model="demo", input="hello")
    assert refused.value.status_code in (400, 404, 501) and refused.value.body["message"]  # type: ignore[index]


def test_structured_answers_follow_their_schema(client: openai.OpenAI) -> None:
    found = client.chat.completions.parse(
        model="demo", messages=ASK, response_format=Verdict, temperature=0, max_tokens=200
    )  # type: ignore[arg-type]
    (choice,) = found.choices
    assert isinstance(choice.message.parsed, Verdict) and choice.finish_reason == "stop"
    again = client.responses.parse(
        model="demo", input="Is it?", text_format=Verdict, temperature=0, max_output_tokens=200
    )
    assert isinstance(again.output_parsed, Verdict)
    with client.chat.completions.stream(
        model="demo", messages=ASK, response_format=Verdict, temperature=0, max_tokens=200
    ) as stream:  # type: ignore[arg-type]
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == choice.message.parsed
    schema = {"name": "n", "schema": {"type": "array", "uniqueItems": True}}
    with pytest.raises(openai.BadRequestError, match="uniqueItems"):
        client.chat.completions.create(
            model="demo",
            messages=ASK,  # type: ignore[arg-type]
            response_format={"type": "json_schema", "json_schema": schema},  # type: ignore[arg-type]
        )


def test_a_forced_call_parses_as_its_tool(client: openai.OpenAI) -> None:
    tool = openai.pydantic_function_tool(Verdict, name="judge")
    for choice in ("required", {"type": "function", "function": {"name": "judge"}}):
        found = client.chat.completions.parse(
            model="demo", messages=ASK, tools=[tool], tool_choice=choice, temperature=0,
            max_tokens=200, parallel_tool_calls=False, extra_body={"chat_template": TEMPLATE},
        )  # type: ignore[call-overload]  # fmt: skip
        (call,) = found.choices[0].message.tool_calls
        assert isinstance(call.function.parsed_arguments, Verdict)


def test_batches(scripted: openai.OpenAI) -> None:
    """As OpenAI's guide to its batch API does it."""
    lines = [
        {
            "custom_id": f"request-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "demo", "messages": ASK, "max_tokens": 3 + number},
        }
        for number in range(20)
    ]
    content = "\n".join(json.dumps(line) for line in lines).encode()
    file = scripted.files.create(file=("in.jsonl", content), purpose="batch")
    assert scripted.files.content(file.id).content == content
    batch = scripted.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"made": "here"},
    )
    end = time.monotonic() + 60
    while batch.status == "in_progress" and time.monotonic() < end:
        time.sleep(0.1)
        batch = scripted.batches.retrieve(batch.id)
    assert batch.status == "completed" and batch.request_counts
    assert batch.request_counts.completed == 20 and batch.error_file_id is None
    assert batch.output_file_id is not None
    answers = scripted.files.content(batch.output_file_id).text.splitlines()
    assert {json.loads(one)["custom_id"] for one in answers} == {
        f"request-{number}" for number in range(20)
    }
    assert [one.id for one in scripted.batches.list()] == [batch.id]
    assert {one.id for one in scripted.files.list()} == {file.id, batch.output_file_id}
    assert scripted.files.delete(file.id).deleted
    with pytest.raises(openai.ConflictError):
        scripted.batches.cancel(batch.id)
