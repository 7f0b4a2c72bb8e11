"""Logits processors of the host see the same logits however a model is split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import jengine
from jengine import SamplingParams
from jengine.errors import UnsupportedFeature
from tests.api.engines import random_prompts, tiny_engine
from tests.api.processor_functions import CountUp, OneToken

PROMPTS = random_prompts(3, 9, 20, 31)


def answers(llm: jengine.LLM) -> list[list[int]]:
    usual = {"max_tokens": 8, "ignore_eos": True}
    asked = [
        SamplingParams(temperature=0, **usual),
        SamplingParams(extra_args={"target_token": 11}, **usual),
        SamplingParams(extra_args={"counts": True}, **usual),
        SamplingParams(temperature=0, repetition_penalty=1.3, **usual),
    ]
    return [one.outputs[0].token_ids for one in llm.generate(PROMPTS, asked)]


@pytest.mark.slow
@pytest.mark.parametrize("split", [{"tensor_parallel_size": 2}, {"data_parallel_size": 2}])
def test_the_same_answers_on_several_devices(folder: Path, split: dict[str, Any]) -> None:
    classes = [OneToken, CountUp]
    with tiny_engine(folder, logits_processors=classes) as llm:
        expected = answers(llm)
    with tiny_engine(folder, logits_processors=classes, **split) as llm:
        assert answers(llm) == expected
    assert expected[1] == [11] * 8
    assert expected[2] == list(range(PROMPTS[2][-1] + 1, PROMPTS[2][-1] + 9))


@pytest.mark.slow
def test_stages_have_no_place_for_them(folder: Path) -> None:
    with pytest.raises(UnsupportedFeature, match=r"OneToken.*pipeline_parallel_size=2"):
        tiny_engine(folder, logits_processors=[OneToken], pipeline_parallel_size=2)
