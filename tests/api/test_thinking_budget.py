"""Budgets of reasoning through LLM: a real model must end its reasoning, on the device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

import jengine
from jengine import SamplingParams
from jengine.errors import RequestError
from tests.api.engines import is_idle, tiny_engine

MARKS = {"reasoning_start_str": "(", "reasoning_end_str": "so)"}
PROMPT = "well ("


@pytest.fixture(scope="module")
def thinker(full_folder: Path, letters: PreTrainedTokenizerFast) -> Iterator[jengine.LLM]:
    """The llama with a tokenizer, which reasons between brackets."""
    made = tiny_engine(full_folder, tokenizer=letters, reasoning_config=MARKS)
    yield made
    assert is_idle(made)


def ids(llm: jengine.LLM, text: str) -> list[int]:
    return llm.get_tokenizer().encode(text, add_special_tokens=False)


def answer(llm: jengine.LLM, prompt: list[int], **given: object) -> list[int]:
    params = SamplingParams(**{"ignore_eos": True, "max_tokens": 20, "temperature": 0, **given})  # type: ignore[arg-type]
    (output,) = llm.generate({"prompt_token_ids": prompt}, params)
    return list(output.outputs[0].token_ids)


@pytest.mark.parametrize("sampled", [{}, {"temperature": 1.0, "seed": 4}, {"logprobs": 1}])
@pytest.mark.parametrize("budget", [0, 6])
def test_tokens_before_and_after_the_forced_end_are_the_models(
    thinker: jengine.LLM, budget: int, sampled: dict[str, object]
) -> None:
    prompt, end = ids(thinker, PROMPT), ids(thinker, "so)")
    free = answer(thinker, prompt, **sampled)
    found = answer(thinker, prompt, thinking_token_budget=budget, **sampled)
    assert found[: budget + 3] == free[:budget] + end and found != free
    if "temperature" not in sampled:
        assert "(" not in thinker.get_tokenizer().decode(found), "it does not reason again"
        rest = answer(thinker, prompt + found[: budget + 3], max_tokens=17 - budget)
        assert found[budget + 3 :] == rest


def test_it_is_kept_beside_free_requests_and_other_masks(thinker: jengine.LLM) -> None:
    prompt, ten = ids(thinker, PROMPT), ids(thinker, "abcdefghij")
    usual = {"max_tokens": 12, "temperature": 1.0, "seed": 3, "ignore_eos": True}
    params = [
        SamplingParams(**usual),
        SamplingParams(**usual, thinking_token_budget=4),
        SamplingParams(**usual, thinking_token_budget=4, allowed_token_ids=ten),
        SamplingParams(**usual, thinking_token_budget=4, repetition_penalty=1.5, logprobs=0),
    ]
    outputs = thinker.generate([{"prompt_token_ids": prompt}] * len(params), params)
    tokens = [list(one.outputs[0].token_ids) for one in outputs]
    assert tokens[1][:7] == tokens[0][:4] + ids(thinker, "so)")
    assert set(tokens[2][:4] + tokens[2][7:]) <= set(ten) and tokens[2][4:7] == tokens[1][4:7]
    assert tokens[3][4:7] == tokens[1][4:7]
    scores = outputs[3].outputs[0].logprobs
    assert scores is not None
    for step, token in list(zip(scores, tokens[3], strict=True))[4:7]:
        assert math.isclose(step[token].logprob, 0, abs_tol=1e-5), "the only one that may follow"


def test_what_is_refused(thinker: jengine.LLM, text_engine: jengine.LLM) -> None:
    with pytest.raises(RequestError, match="must be a non-negative integer or -1 for unlimited"):
        SamplingParams(thinking_token_budget=-3)
    with pytest.raises(RequestError, match="set but reasoning_config is not configured"):
        text_engine.generate("hello", SamplingParams(thinking_token_budget=3))
    assert text_engine.generate("hello", SamplingParams(thinking_token_budget=-1))
