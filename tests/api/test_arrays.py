"""Scoring and generating with arrays: texts, several answers per row, and what is refused."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from jengine.errors import RequestError
from tests.api.engines import random_prompts

ROWS = random_prompts(6, 9, seed=4)
PARAMS = SamplingParams(max_tokens=3, ignore_eos=True)


def test_a_text_is_scored_as_the_prompt_it_is(text_llm: jengine.LLM) -> None:
    ids = text_llm.get_tokenizer()("some text").input_ids
    scores = text_llm.compute_logprobs(["some text"])
    assert scores.shape == (1, len(ids)) == (1, 9)
    np.testing.assert_array_equal(scores, text_llm.compute_logprobs([ids]))
    both = text_llm.compute_logprobs(["some text", "hi"])
    assert both.shape == (2, 9) and not np.asarray(both)[1, 2:].any()
    np.testing.assert_allclose(both[:1], scores, atol=1e-5)


def test_a_text_alone_is_no_list_of_prompts(text_llm: jengine.LLM) -> None:
    for method in (text_llm.compute_logprobs, text_llm.generate_arrays):
        with pytest.raises(RequestError, match="tokens are the text 'some text'; expected rows"):
            method("some text")


def test_texts_need_a_tokenizer(llm: jengine.LLM) -> None:
    with pytest.raises(RequestError, match="no tokenizer"):
        llm.compute_logprobs(["some text"])
    with pytest.raises(RequestError, match="no tokenizer"):
        llm.generate_arrays(["some text"])


def test_n_answers_of_a_row_are_next_to_each_other(llm: jengine.LLM) -> None:
    key = jax.random.key(3)
    result = llm.generate_arrays(ROWS, key=key, sampling_params=PARAMS.clone(n=2))
    assert result.tokens.shape == result.logprobs.shape == (4, 3)
    repeated = [ROWS[0], ROWS[0], ROWS[1], ROWS[1]]
    alone = llm.generate_arrays(repeated, key=key, sampling_params=PARAMS)
    np.testing.assert_array_equal(result.tokens, alone.tokens)
    assert not np.array_equal(result.tokens[0], result.tokens[1]), "each draws for itself"


@pytest.mark.parametrize("key", [0, "0", np.zeros(2, np.uint32), jax.random.PRNGKey(0)])
def test_a_key_is_a_jax_key(llm: jengine.LLM, key: Any) -> None:
    with pytest.raises(RequestError, match=r"key=.*expected a key such as jax.random.key\(0\)"):
        llm.generate_arrays(ROWS, key=key)


def test_one_key_is_enough(llm: jengine.LLM) -> None:
    with pytest.raises(RequestError, match=r"key has shape \(2,\); expected one key"):
        llm.generate_arrays(ROWS, key=jax.random.split(jax.random.key(0)))


@pytest.mark.parametrize(
    ("tokens", "complaint"),
    [
        ([3, 4, 5], r"a row of tokens is 3; expected a list of integers.*\[\[1, 2, 3\]\]"),
        ([[3.5, 4.0]], r"a row of tokens is \[3.5, 4.0\]"),
        ([[]], r"a row of tokens is \[\]"),
        (5, "tokens are a int"),
        (b"bytes", "tokens are a bytes"),
        ([], "there are no rows"),
        (np.zeros(4, int), r"shape \(4,\)"),
    ],
)
def test_rows_that_are_none(llm: jengine.LLM, tokens: Any, complaint: str) -> None:
    for call in (llm.compute_logprobs, llm.generate_arrays):
        with pytest.raises(RequestError, match=complaint):
            call(tokens)
