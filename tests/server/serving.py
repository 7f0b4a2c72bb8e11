"""Servers for tests: a scripted engine whose tokens are letters, and a client in this process."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

from jengine.assembly.engine import Engine
from jengine.server.app import make_app
from jengine.server.serving.service import Service
from jengine.server.settings import ServerSettings
from jengine.text.tokenizer import Tokenizer
from tests.engine.scripted import VOCAB, scripted_engine
from tests.executor.scripted import MirrorRow

NAME = "letters"
# What a whole answer says of counts that are not told.
UNTOLD = {"prompt_tokens_details": None, "completion_tokens_details": None}
CHAT_TEMPLATE = (
    "{% for message in messages %}<s>{{ message.role }}:{{ message.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:{% if thinking %}!{% endif %}{% endif %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
)


@cache
def letters() -> Tokenizer:
    """One token for each printable ASCII character: as many tokens as characters."""
    characters = [chr(code) for code in range(32, 127)]
    vocabulary = {" ": 0, "<s>": 1, "</s>": 2}
    vocabulary |= {char: number for number, char in enumerate(characters[1:], start=3)}
    assert len(vocabulary) == VOCAB
    backend = Backend(models.BPE(vocabulary, []))
    backend.decoder = decoders.Fuse()
    hf = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", chat_template=CHAT_TEMPLATE
    )
    return Tokenizer(hf)


def letters_engine(**settings: Any) -> Engine:
    """A scripted engine of letters."""
    return scripted_engine(tokenizer=letters(), **settings)


def answer_with(monkeypatch: pytest.MonkeyPatch, ids: list[int], seconds: float = 0.0) -> None:
    """Make scripted models answer with these tokens, then repeat the last; each may take time.

    A token depends on its row alone: rows of earlier requests may still run, and take nothing.
    """

    def next_token(_: Any, row: MirrorRow) -> int:
        time.sleep(seconds)
        return ids[min(len(row.token_ids) - row.prompt_length, len(ids) - 1)]

    monkeypatch.setattr("tests.executor.scripted.ScriptedExecutor._next_token", next_token)


@contextmanager
def serving(engine: Engine | None = None, **settings: Any) -> Iterator[TestClient]:
    """A client of a server over an engine, which is shut down at the end."""
    settings.setdefault("served_model_name", (NAME,))
    app = make_app(engine or letters_engine(), ServerSettings(**settings))
    with TestClient(app) as client:
        yield client
    app.state.service.shutdown()


def service_of(client: TestClient) -> Service:
    """The service behind a client."""
    service: Service = client.app.state.service  # type: ignore[attr-defined]
    return service


def error_of(response: httpx2.Response, status: int) -> dict[str, Any]:
    """The error of a response, which must have this status and the shape of all errors."""
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["code"] == status
    return error


def events(response: httpx2.Response) -> list[dict[str, Any]]:
    """The events of a stream, which must end with [DONE]."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]" and all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
