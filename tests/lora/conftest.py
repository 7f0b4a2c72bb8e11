"""One engine with adapters for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.engines import tiny_engine
from tests.lora.engines import SETTINGS, Expected, Models, Setup, merged_answers, write_models


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return write_models(tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="session")
def expected(models: Models) -> Expected:
    return merged_answers(models)


@pytest.fixture(scope="session")
def made(models: Models) -> Iterator[Setup]:
    with tiny_engine(models.base, **SETTINGS, enable_sleep_mode=True) as llm:
        yield Setup(llm, models)
