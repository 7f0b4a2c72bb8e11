"""The scripted executor in a whole engine: answers, texts, time, and requests that fail."""

from __future__ import annotations

import time
from typing import Any

import pytest

import jengine
from jengine import SamplingParams
from tests.executor.scripted import scripted_tokens
from tests.server.scripted import Executor

PATH = f"{Executor.__module__}:{Executor.__name__}"
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
TEXTS = SamplingParams(temperature=0, max_tokens=60)
VOCAB = 2048


def engine(**options: Any) -> jengine.LLM:
    return jengine.LLM("demo", executor=PATH, executor_options=options, show_progress=False)


@pytest.mark.parametrize("checks", [True, False])
def test_answers_follow_from_the_prompt(checks: bool) -> None:
    with engine(checks=checks) as llm:
        prompts = [[5, 6, 7], list(range(3, 80))]
        outputs = llm.generate(prompts, GREEDY.clone(logprobs=2), use_tqdm=False)
        for prompt, output in zip(prompts, outputs, strict=True):
            answer = output.outputs[0]
            assert answer.token_ids == scripted_tokens(prompt, 12, VOCAB)
            assert answer.logprobs is not None and len(answer.logprobs) == 12


@pytest.mark.parametrize("checks", [True, False])
def test_texts_and_requests_that_fail(checks: bool) -> None:
    options = {
        "checks": checks, "answers": {"weather": "It rains."}, "not_finite": "sick",
        "no_such_token": "strange",
    }  # fmt: skip
    with engine(**options) as llm:
        prompts = ["How is the weather?", "You look sick.", "How strange.", "Hello."]
        told, sick, strange, other = llm.generate(prompts, TEXTS, use_tqdm=False)
        assert told.outputs[0].text == "It rains." and told.outputs[0].finish_reason == "stop"
        assert sick.outputs[0].finish_reason == "error" and "not finite" in str(sick.error)
        assert strange.outputs[0].finish_reason == "error" and "2048" in str(strange.error)
        assert strange.outputs[0].token_ids == []
        expected = scripted_tokens(other.prompt_token_ids, 60, VOCAB)
        assert other.outputs[0].token_ids == expected[: len(other.outputs[0].token_ids)]
        assert llm.stats().running == 0


def test_steps_take_their_time() -> None:
    with engine(step_seconds=0.02) as llm:
        begun = time.monotonic()
        llm.generate([[5, 6]], GREEDY, use_tqdm=False)
        assert time.monotonic() - begun > 11 * 0.02
