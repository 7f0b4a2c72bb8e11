"""Answers follow their grammars wherever a model runs, and are those of one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import jengine
from tests.api.engines import tiny_engine
from tests.api.grammar_requests import texts
from tests.server.serving import letters


def engine_of_letters(folder: Path, **settings: Any) -> jengine.LLM:
    return tiny_engine(folder, tokenizer=letters().hf, **settings)


@pytest.fixture(scope="module")
def on_one(folder: Path) -> list[str]:
    with engine_of_letters(folder) as llm:
        return texts(llm)


SPLITS: list[dict[str, Any]] = [
    {"tensor_parallel_size": 2},
    {"pipeline_parallel_size": 2},
    {"data_parallel_size": 2},
    {"data_parallel_size": 2, "pipeline_parallel_size": 2, "tensor_parallel_size": 2},
]


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
def test_the_same_answers_however_the_model_is_split(
    folder: Path, on_one: list[str], split: dict[str, Any]
) -> None:
    with engine_of_letters(folder, **split) as llm:
        assert texts(llm) == on_one
        assert texts(llm) == on_one  # from the prefix cache
