"""Logits processors of the host see the same logits however a model is split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from tests.api.engines import random_prompts, tiny_engine
from tests.api.processor_functions import CountUp, OneToken
from tests.marks import slow

PROMPTS = random_prompts(3, 9, 20, 31)


def answers(llm: jengine.LLM) -> list[list[int]]:
    """Of more requests than rows, which come and go at different times."""
    asked = [
        SamplingParams(max_tokens=8 + turn, ignore_eos=True, **own)
        for turn in range(4)
        for own in (
            {"temperature": 0},
            {"extra_args": {"target_token": 11}},
            {"extra_args": {"counts": True}},
            {"temperature": 0, "repetition_penalty": 1.3},
        )
    ]
    return [one.outputs[0].token_ids for one in llm.generate(PROMPTS * 4, asked)]


@pytest.mark.parametrize(
    "split",
    [
        {"pipeline_parallel_size": 2},
        *slow(
            {"tensor_parallel_size": 2},
            {"data_parallel_size": 2},
            {"pipeline_parallel_size": 2, "tensor_parallel_size": 2},
        ),
    ],
    ids=str,
)
def test_the_same_answers_on_several_devices(folder: Path, split: dict[str, Any]) -> None:
    classes = [OneToken, CountUp]
    with tiny_engine(folder, logits_processors=classes) as llm:
        expected = answers(llm)
    with tiny_engine(folder, logits_processors=classes, **split) as llm:
        assert answers(llm) == expected
    assert expected[1] == [11] * 8
    assert expected[2] == list(range(PROMPTS[2][-1] + 1, PROMPTS[2][-1] + 9))


class Interrupted(CountUp):
    """Ctrl-C arrives in its `left`-th call from now."""

    left = 0

    def apply(self, logits: np.ndarray) -> np.ndarray:
        Interrupted.left -= 1
        if Interrupted.left == 0:
            raise KeyboardInterrupt
        return super().apply(logits)


@pytest.mark.parametrize("stages", [1, 2])
def test_an_interrupt_in_a_processor_only_ends_the_requests(folder: Path, stages: int) -> None:
    split = {"pipeline_parallel_size": stages, "max_num_batched_tokens": 32}
    with tiny_engine(folder, logits_processors=[OneToken, Interrupted], **split) as llm:
        Interrupted.left = 0
        expected = answers(llm)
        for calls in (1, 2, 3, 7, 12):
            Interrupted.left = calls
            with pytest.raises(KeyboardInterrupt):
                answers(llm)
            assert answers(llm) == expected
