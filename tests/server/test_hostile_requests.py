"""Any JSON at all: a client error that names the field, or an answer. Never 500, never a leak.

What a field takes is read from the structs of the requests, so that a new field is tested too.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from starlette.testclient import TestClient

from jengine.server.chat.fields import ChatRequest
from jengine.server.completions import endpoint as completions
from jengine.server.completions.fields import CompletionRequest
from jengine.server.serving.rendering import Rendering
from tests.engine.scripted import MAX_MODEL_LEN, VOCAB
from tests.server.listening import PATIENCE, Client, listening
from tests.server.serving import error_of, events, serving

KEY = "sk-very-secret-key"
PATHS = {
    "/v1/completions": (CompletionRequest, {"prompt": "abc", "max_tokens": 2}),
    "/v1/chat/completions": (
        ChatRequest, {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 2}
    ),
}  # fmt: skip
FIELDS = [
    (path, name) for path, (struct, _) in PATHS.items() for name in struct.__struct_encode_fields__
]
# What must not be in an error: addresses, paths, tracebacks, keys.
LEAKS = re.compile(rf"0x[0-9a-f]{{4,}}|/(?:tmp|root|home|usr|work)/|Traceback|{KEY}|\.py\b")
SLOW = settings(
    max_examples=60, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with serving(api_key=(KEY,)) as one:
        one.headers["Authorization"] = f"Bearer {KEY}"
        yield one


def checked(response: httpx2.Response) -> None:
    """An answer, or a client error (501: a feature that is not built) without a leak."""
    if response.status_code != 200:
        assert response.status_code == 501 or 400 <= response.status_code < 500, response.text
        message = error_of(response, response.status_code)["message"]
        assert not LEAKS.search(message), message
        assert 0 < len(message) <= 1024
    elif response.headers["content-type"].startswith("application/json"):
        json.loads(response.text, parse_constant=not_json)


def not_json(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def post(client: TestClient, path: str, body: Any) -> httpx2.Response:
    return client.post(path, content=body if isinstance(body, bytes) else json.dumps(body).encode(),
                       headers={"Content-Type": "application/json"})  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"3", b"null", b'"text"', b"\xff\xfe", b"{'a': 1}", b'{"prompt": "a",}',
        b'{"prompt": "a", "temperature": NaN}', b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "temperature": 1e999}', b"[" * 100_000, b'{"a":' * 50_000,
        b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"messages": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"prompt": "\\ud800"', b'{"max_tokens": ' + b"9" * 5000 + b"}",
    ],
)  # fmt: skip
def test_what_is_no_request(client: TestClient, path: str, body: bytes) -> None:
    response = post(client, path, body)
    checked(response)
    assert response.status_code == 400


def test_a_byte_order_mark_is_no_part_of_a_body(client: TestClient) -> None:
    body = b'\xef\xbb\xbf{"prompt": "a", "max_tokens": 1}'
    assert post(client, "/v1/completions", body).status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_only_json_is_taken_as_json(client: TestClient, path: str) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = client.post(path, content=b"{}", headers={"Content-Type": kind})
        assert error_of(response, 415)["type"] == "UnsupportedMediaTypeError"


@pytest.mark.parametrize(("path", "name"), FIELDS)
def test_any_field_of_any_type(client: TestClient, path: str, name: str) -> None:
    values = ("x", 3, -1, 1.5, True, [], ["x"], {}, {"x": 1}, 2**70, "\ud800")
    bodies = [json.dumps({**PATHS[path][1], name: value}) for value in values]
    assert client.portal is not None
    for response in client.portal.call(in_its_loop, client, path, bodies):
        checked(response)


async def in_its_loop(client: TestClient, path: str, bodies: list[str]) -> list[httpx2.Response]:
    """Answers of the client's server. A call of the client itself goes through two threads, which
    takes longer than most of these answers."""
    headers = {**client.headers, "Content-Type": "application/json"}
    transport = httpx2.ASGITransport(client.app)
    async with httpx2.AsyncClient(
        transport=transport, base_url=client.base_url, headers=headers
    ) as sending:
        return [await sending.post(path, content=body) for body in bodies]


NUMERIC = ("temperature", "top_p", "top_k", "min_p", "n", "seed", "presence_penalty",
           "frequency_penalty", "repetition_penalty", "max_tokens", "min_tokens", "logprobs",
           "prompt_logprobs", "truncate_prompt_tokens", "stream_interval", "priority", "best_of",
           "length_penalty", "thinking_token_budget", "top_logprobs",
           "max_completion_tokens")  # fmt: skip
ODD_NUMBERS = (
    st.sampled_from([-1, 0, -0.0, 2**31, 2**63, 2**64, -(2**63) - 1, 1e308, 1e-308, -1e308, 1e15])
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
    | st.sampled_from(["1", "nan", "NaN", ""])
    | st.none()
)


@SLOW
@given(
    path=st.sampled_from(sorted(PATHS)),
    numbers=st.dictionaries(st.sampled_from(NUMERIC), ODD_NUMBERS, min_size=1, max_size=3),
    stream=st.booleans(),
)
def test_any_number_in_any_field(
    client: TestClient, path: str, numbers: dict[str, Any], stream: bool
) -> None:
    checked(post(client, path, {**PATHS[path][1], "stream": stream, **numbers}))


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@SLOW
@given(data=st.data(), path=st.sampled_from(sorted(PATHS)))
def test_any_json_in_any_fields(client: TestClient, data: st.DataObject, path: str) -> None:
    names = st.sampled_from(PATHS[path][0].__struct_encode_fields__) | st.text(max_size=6)
    body = data.draw(st.dictionaries(names, ANY_JSON, max_size=4))
    body.pop("max_tokens", None)
    checked(post(client, path, {**PATHS[path][1], **body}))


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"n": 10**9}, "n"),
        ({"prompt": ["a"] * 100_000}, "prompt"),
        ({"prompt": [[1]] * 100_000}, "prompt"),
        ({"stop": ["a"] * 100_000}, "stop"),
        ({"logit_bias": {str(number): 1 for number in range(200_000)}}, "logit_bias"),
        ({"bad_words": ["a"] * 100_000}, "bad_words"),
        ({"stop_token_ids": list(range(100_000))}, "stop_token_ids"),
        ({"allowed_token_ids": list(range(100_000))}, "allowed_token_ids"),
    ],
)
def test_huge_lists_are_refused_soon(client: TestClient, more: Any, param: str) -> None:
    content = json.dumps({**PATHS["/v1/completions"][1], **more}).encode()
    began = time.process_time()
    error = error_of(post(client, "/v1/completions", content), 400)
    assert time.process_time() - began < 20 and error["param"] == param


@pytest.mark.parametrize(
    "prompt", [" ", "\t\n", "\0", "a\0b", "\ud800", "</s><s>", "\u202e", "\N{GRINNING FACE}" * 10]
)
def test_odd_prompts_are_answered_or_refused(client: TestClient, prompt: str) -> None:
    checked(post(client, "/v1/completions", {"prompt": prompt, "max_tokens": 2}))
    messages = [{"role": "user", "content": prompt}]
    checked(post(client, "/v1/chat/completions", {"messages": messages, "max_tokens": 2}))


def test_a_text_of_a_million_characters_does_not_hold_up_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered, go_on = threading.Event(), threading.Event()
    render = Rendering.prompt

    def held_if_huge(self: Rendering, prompt: Any, *more: Any) -> Any:
        if len(prompt) > 10**5:
            entered.set()
            assert go_on.wait(PATIENCE)
        return render(self, prompt, *more)

    monkeypatch.setattr(Rendering, "prompt", held_if_huge)
    with listening() as server:
        huge = Client(server.port).send(
            "/v1/completions", {"prompt": "a" * 10**6, "max_tokens": 1}
        )  # fmt: skip
        assert entered.wait(PATIENCE)
        assert server.connect(prompt="a", max_tokens=1).status == 200
        go_on.set()
        assert huge.status == 400 and b"maximum context length" in huge.read_until(b"}}")


@pytest.mark.parametrize("token", [-1, VOCAB, 2**31, 2**63, 2**70, 1.5, True, None, "a", [1]])
def test_tokens_that_do_not_exist(client: TestClient, token: Any) -> None:
    for prompt in ([5, token], [[5, token]]):
        body = {"prompt": prompt, "max_tokens": 1}
        assert error_of(post(client, "/v1/completions", body), 400)["param"].startswith("prompt")


def test_the_context_is_full_at_exactly_its_length(client: TestClient) -> None:
    fits = {"prompt": [5] * (MAX_MODEL_LEN - 1), "max_tokens": 1}
    assert post(client, "/v1/completions", fits).status_code == 200
    over = {**fits, "prompt": [5] * MAX_MODEL_LEN}
    for body in (over, {"prompt": "a", "max_tokens": MAX_MODEL_LEN + 1}):
        message = error_of(post(client, "/v1/completions", body), 400)["message"]
        assert f"maximum context length is {MAX_MODEL_LEN} tokens. However, you" in message


@settings(max_examples=40, deadline=None, derandomize=True,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(data=st.data())
def test_a_stop_string_never_shows_in_any_stream(client: TestClient, data: st.DataObject) -> None:
    body = {"prompt": data.draw(st.sampled_from(["abc", "zz", "Once"])), "max_tokens": 40,
            "temperature": 0, "ignore_eos": True, "skip_special_tokens": False}  # fmt: skip
    text = post(client, "/v1/completions", body).json()["choices"][0]["text"]
    begin = data.draw(st.integers(0, len(text) - 1))
    stop = text[begin : begin + data.draw(st.integers(1, 6))]
    body |= {"stop": [stop, "never there"], "stream_interval": data.draw(st.integers(1, 5))}
    choice = post(client, "/v1/completions", body).json()["choices"][0]
    assert choice["text"] == text[: text.index(stop)] and choice["stop_reason"] == stop
    chunks = events(post(client, "/v1/completions", {**body, "stream": True}))
    streamed = "".join(one["text"] for chunk in chunks for one in chunk["choices"])
    assert streamed == choice["text"]


def test_nothing_of_a_request_makes_a_line_of_the_log(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    forged = "x\nCRITICAL forged line"
    with caplog.at_level(logging.DEBUG), serving(enable_log_requests=True) as logging_all:
        for more in (
            {"prompt": forged}, {"user": forged}, {"stop": forged}, {"model": forged},
            {"request_id": forged}, {forged: 1},
        ):  # fmt: skip
            post(logging_all, "/v1/completions", {"prompt": "a", "max_tokens": 1, **more})
        post(logging_all, f"/v1/{forged!r}", {})
    lines = [line for record in caplog.records for line in record.getMessage().splitlines()]
    assert lines and not any(line.startswith("CRITICAL forged") for line in lines)
    assert all(len(record.getMessage()) < 10_000 for record in caplog.records)


def test_a_fault_of_ours_is_told_without_its_text(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_arguments: Any) -> None:
        raise ZeroDivisionError(f"at 0x7f31deadbeef in /home/someone/model with {KEY}")

    monkeypatch.setattr(completions, "check_completion", failing)
    error = error_of(post(client, "/v1/completions", {"prompt": "a"}), 500)
    assert not LEAKS.search(error["message"]) and "ZeroDivisionError" in error["message"]
    assert "someone" in caplog.text, "the log has the cause"
