"""Cross attention with drafts, several steps in one call, or sleep answers as without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import jengine
from jengine import SamplingParams
from tests.api.engines import answers, tiny_engine
from tests.media import encoder_prompts
from tests.media.encoder_prompts import CROSS

pytestmark = pytest.mark.slow
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "adaptive": False}
SETTINGS: dict[str, dict[str, Any]] = {
    "drafts": {"speculative_config": NGRAM, "compilation_config": {"decode_rows": [32]}},
    "several steps": {"num_scheduler_steps": 4},
}


@pytest.fixture(scope="module", params=CROSS)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoder_prompts.write(tmp_path_factory.mktemp(family), family)


@pytest.fixture(scope="module")
def expected(folder: Path, family: str) -> list[list[list[int]]]:
    with engine(folder) as llm:
        return answers(llm.generate(encoder_prompts.of(family), GREEDY))


def engine(folder: Path, **settings: Any) -> jengine.LLM:
    return tiny_engine(folder, max_model_len=48, **settings)


def used(llm: jengine.LLM) -> dict[str, int]:
    """How often an engine ran what these tests set."""
    ran = [entry.hits for (size, _), entry in llm.ledger.entries.items() if "*" in str(size)]
    return {
        "drafts": llm.engine.in_process.core.counts().drafts.accepted,
        "several steps": sum(ran),
    }


@pytest.mark.parametrize("name", SETTINGS)
def test_the_answers_are_the_same(family: str, folder: Path, expected: Any, name: str) -> None:
    with engine(folder, **SETTINGS[name]) as llm:
        assert answers(llm.generate(encoder_prompts.of(family), GREEDY)) == expected
        assert used(llm)[name], "it was used"


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_changes_nothing(family: str, folder: Path, expected: Any, level: int) -> None:
    with engine(folder, enable_sleep_mode=True) as llm:
        assert answers(llm.generate(encoder_prompts.of(family), GREEDY)) == expected
        llm.sleep(level)
        if level == 2:
            llm.reload_weights()
        assert llm.wake_up()
        assert answers(llm.generate(encoder_prompts.of(family), GREEDY)) == expected
