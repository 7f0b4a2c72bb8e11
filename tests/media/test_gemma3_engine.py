"""Images whose tokens see each other: chunks, cached prefixes, preemption, and a mesh of two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

import jengine
from jengine import SamplingParams
from tests.api.engines import answers, rebuilt, tiny_engine
from tests.media.tiny_vision import BEGIN, picture, write_vision

pytestmark = pytest.mark.slow
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
PICTURES = [picture(30, 50), picture(64, 41)]
PROMPTS: list[Any] = [
    {"prompt_token_ids": [5, BEGIN, 7, 9, BEGIN, 8], "multi_modal_data": {"image": PICTURES}},
    [3, 4, 5, 6] * 9,
    {"prompt_token_ids": [BEGIN, 9], "multi_modal_data": {"image": PICTURES[1]}},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vision(tmp_path_factory.mktemp("gemma3"), "gemma3")


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[jengine.LLM]:
    engine = tiny_engine(folder)
    yield engine
    engine.shutdown()


def test_chunks_prefixes_and_preemption_change_nothing(llm: jengine.LLM) -> None:
    whole = answers(llm.generate(PROMPTS, GREEDY))
    again = llm.generate(PROMPTS, GREEDY)
    assert answers(again) == whole and again[0].num_cached_tokens > 0
    with rebuilt(llm, num_blocks=14, long_prefill_token_threshold=8) as small:
        assert answers(small.generate(PROMPTS, GREEDY)) == whole
        assert small.stats().preemptions > 0


def test_two_devices(folder: Path, llm: jengine.LLM) -> None:
    if jax.device_count() < 2:
        pytest.skip("needs XLA_FLAGS=--xla_force_host_platform_device_count=2")
    short = GREEDY.clone(max_tokens=10)
    wanted = answers(llm.generate(PROMPTS, short))
    other = tiny_engine(folder, tensor_parallel_size=2)
    assert answers(other.generate(PROMPTS, short)) == wanted
    other.shutdown()
