"""Images among the parts of chat messages, over HTTP and in Python."""

from __future__ import annotations

import base64
import copy
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import jengine
from jengine import SamplingParams
from jengine.errors import RequestError
from tests.api.engines import answers, tiny_engine
from tests.media.tiny_vision import BEGIN, END, IMAGE, VIDEO, picture, write_vision
from tests.server.serving import error_of, letters, serving

pytestmark = pytest.mark.slow
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
SMALL = picture(30, 50)
MARK = "".join(chr(30 + token) for token in (BEGIN, IMAGE, END))
TEMPLATE = (
    (
        "{% for message in messages %}{% if message.content is string %}{{ message.content }}"
        "{% else %}{% for part in message.content %}{% if part.type == 'image' %}{{ '%s' }}"
        "{% elif part.type == 'video' %}{{ '%v' }}{% else %}"
        "{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
    )
    .replace("%s", MARK)
    .replace("%v", MARK.replace(chr(30 + IMAGE), chr(30 + VIDEO)))
)


def url_of(image: Any) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[jengine.LLM]:
    folder = write_vision(tmp_path_factory.mktemp("chat"), "qwen2_vl")
    tokenizer = copy.deepcopy(letters().hf)
    tokenizer.chat_template = TEMPLATE
    files: Path = folder / "pictures"
    files.mkdir()
    SMALL.save(files / "small.png")
    yield tiny_engine(
        folder, tokenizer=tokenizer, limit_mm_per_prompt={"image": 2},
        allowed_local_media_path=files,
    )  # fmt: skip


GOOD = {"type": "image_url", "image_url": {"url": url_of(SMALL)}}


def asked(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts]}]


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def test_images_in_python_chats(llm: jengine.LLM) -> None:
    ids = [*letters().encode("ab", False), BEGIN, IMAGE, END, *letters().encode("c", False)]
    (wanted,) = llm.generate(
        {"prompt_token_ids": ids, "multi_modal_data": {"image": SMALL}}, GREEDY
    )
    file = llm.engine.args.allowed_local_media_path
    for part in (
        {"type": "image_url", "image_url": {"url": url_of(SMALL)}},
        {"type": "image_url", "image_url": f"file://{file}/small.png"},
        {"type": "image_pil", "image_pil": SMALL},
    ):
        (found,) = llm.chat(asked(text("ab"), part, text("c")), GREEDY)
        assert found.prompt_token_ids == wanted.prompt_token_ids
        assert answers([found]) == answers([wanted])
    plain = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (joined,) = llm.chat(asked(text("c"), part), GREEDY, chat_template=plain)
    assert joined.prompt.startswith(MARK), "what stands for images comes before the text"


def test_frames_in_chats(llm: jengine.LLM, client: TestClient) -> None:
    frames = [picture(16, 24, seed) for seed in range(3)]
    ids = [BEGIN, VIDEO, END, *letters().encode("c", False)]
    (wanted,) = llm.generate(
        {"prompt_token_ids": ids, "multi_modal_data": {"video": frames}}, GREEDY
    )
    part = {"type": "video", "video": frames}
    (found,) = llm.chat(asked(part, text("c")), GREEDY)
    assert found.prompt_token_ids == wanted.prompt_token_ids
    assert answers([found]) == answers([wanted])
    part = {"type": "video", "video": [url_of(one) for one in frames]}
    body = complete(client, asked(part, text("c")))
    assert body["choices"][0]["message"]["content"] == wanted.outputs[0].text


def test_too_many_images(llm: jengine.LLM) -> None:
    with pytest.raises(RequestError, match="At most 2 image"):
        llm.chat(asked(GOOD, GOOD, GOOD), GREEDY)


@pytest.fixture(scope="module")
def wanted(llm: jengine.LLM) -> jengine.RequestOutput:
    (found,) = llm.chat(asked(text("ab"), GOOD), GREEDY)
    return found


@pytest.fixture(scope="module")
def client(llm: jengine.LLM, wanted: jengine.RequestOutput) -> Iterator[TestClient]:
    with serving(llm.engine) as one:
        yield one


def test_images_over_http(client: TestClient, wanted: jengine.RequestOutput) -> None:
    body = complete(client, asked(text("ab"), GOOD))
    assert body["choices"][0]["message"]["content"] == wanted.outputs[0].text
    assert body["usage"]["prompt_tokens"] == len(wanted.prompt_token_ids)
    small = complete(client, asked(GOOD), mm_processor_kwargs={"max_pixels": 256})
    assert small["usage"]["prompt_tokens"] < body["usage"]["prompt_tokens"]


@pytest.mark.parametrize("name", ["image_mean", "image_std"])
def test_numbers_beyond_those_of_pixels_are_errors_of_their_request(
    client: TestClient, wanted: jengine.RequestOutput, name: str
) -> None:
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(complete, client, asked(text("ab"), GOOD))
        for value in (1e308, [0.5, 0.5, -1e308]):
            body = {"messages": asked(GOOD), "mm_processor_kwargs": {name: value}}
            error = error_of(client.post("/v1/chat/completions", json=body), 400)
            assert name in error["message"] and "beyond those of float32" in error["message"]
        found = other.result()["choices"][0]["message"]["content"]
    assert found == wanted.outputs[0].text


def complete(client: TestClient, messages: Any, **more: Any) -> dict[str, Any]:
    body = {"messages": messages, "temperature": 0, "max_tokens": 6, "ignore_eos": True, **more}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize(
    ("part", "complaint"),
    [
        ({"type": "image_url", "image_url": {"url": "http://127.0.0.1/x"}}, "allowed domains"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, "no picture"),
        ({"type": "image_url"}, "needs an image_url"),
        ({"type": "image_embeds", "image_embeds": "x"}, "not built"),
        ({"type": "input_audio", "input_audio": {}}, "not built"),
        ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AA"}}, "no decoder"),
        ({"type": "video", "video": "data:video/mp4;base64,AA"}, "a list of frames"),
        (text(MARK), "Failed to apply prompt replacement"),
    ],
)
def test_bad_parts_are_errors_of_their_request(
    client: TestClient, part: Any, complaint: str
) -> None:
    body = {"messages": asked(GOOD, part), "max_tokens": 4}
    response = client.post("/v1/chat/completions", json=body)
    assert complaint in error_of(response, 400)["message"]
    complete(client, asked(GOOD))
