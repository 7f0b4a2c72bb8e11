"""Engines that many tests share; each test must leave them idle and alive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

import jengine
from tests.api.engines import WINDOW, is_idle, tiny_engine
from tests.models.tiny_models import write_tiny_native

CHAT_TEMPLATE = (
    "{% for message in messages %}<s>{{ message['role'] }}:{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:{% endif %}"
)


@pytest.fixture(scope="session")
def full_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama: every layer sees everything."""
    return write_tiny_native(tmp_path_factory.mktemp("full"), "llama", max_position_embeddings=1024)


@pytest.fixture(scope="session")
def window_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mistral: every layer sees a window."""
    return write_tiny_native(
        tmp_path_factory.mktemp("window"),
        "mistral",
        max_position_embeddings=1024,
        sliding_window=WINDOW,
    )


@pytest.fixture(scope="session")
def full_engine(full_folder: Path) -> jengine.LLM:
    return tiny_engine(full_folder)


@pytest.fixture(scope="session")
def window_engine(window_folder: Path) -> jengine.LLM:
    return tiny_engine(window_folder)


@pytest.fixture(scope="session")
def letters() -> PreTrainedTokenizerFast:
    """One token a printable ASCII character, so text and tokens have the same length."""
    characters = [chr(code) for code in range(32, 127)]
    vocabulary = {" ": 0, "<s>": 1, "</s>": 2}
    vocabulary |= {char: number for number, char in enumerate(characters[1:], start=3)}
    backend = Backend(models.BPE(vocabulary, []))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", chat_template=CHAT_TEMPLATE
    )


@pytest.fixture(scope="session")
def text_engine(full_folder: Path, letters: PreTrainedTokenizerFast) -> jengine.LLM:
    """The llama with a tokenizer; the same programs as `full_engine`."""
    return tiny_engine(full_folder, tokenizer=letters)


@pytest.fixture(params=["full_engine", "window_engine"])
def either_engine(request: pytest.FixtureRequest) -> Iterator[jengine.LLM]:
    """A test with this runs once a kind of attention."""
    engine = request.getfixturevalue(request.param)
    yield engine
    assert is_idle(engine)


@pytest.fixture
def llm(full_engine: jengine.LLM) -> Iterator[jengine.LLM]:
    """The full-attention engine, which the test must leave idle."""
    yield full_engine
    assert is_idle(full_engine)


@pytest.fixture
def text_llm(text_engine: jengine.LLM) -> Iterator[jengine.LLM]:
    """The engine with a tokenizer, which the test must leave idle."""
    yield text_engine
    assert is_idle(text_engine)
