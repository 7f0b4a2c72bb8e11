"""Rows with a grammar get drafts, and the tokens and log-probabilities that they get without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jengine
from jengine import SamplingParams, StructuredOutputsParams
from tests.api.engines import answers, is_idle, logprob_rows, tiny_engine
from tests.api.grammar_requests import PROMPTS, params

# Answers that were given before are past outputs the next time, so that drafts are accepted.
SUFFIX = {"method": "suffix", "num_speculative_tokens": 3, "adaptive": False}


@pytest.fixture(scope="module")
def drafting(full_folder: Path, letters: Any) -> Iterator[jengine.LLM]:
    settings = {"speculative_config": SUFFIX, "compilation_config": {"decode_rows": [32]}}
    with tiny_engine(full_folder, tokenizer=letters, **settings) as llm:
        yield llm


@pytest.mark.slow
def test_the_same_answers_as_without_drafts(
    drafting: jengine.LLM, text_engine: jengine.LLM
) -> None:
    expected = text_engine.generate(PROMPTS, params())
    for _ in range(2):
        found = drafting.generate(PROMPTS, params())
        assert answers(found) == answers(expected)
        for ours, theirs in zip(found, expected, strict=True):
            ours, theirs = ours.outputs[0], theirs.outputs[0]
            assert (ours.text, ours.finish_reason) == (theirs.text, theirs.finish_reason)
            assert ours.stop_reason == theirs.stop_reason
        np.testing.assert_allclose(
            logprob_rows(found[3].outputs[0].logprobs, 2),
            logprob_rows(expected[3].outputs[0].logprobs, 2),
            atol=1e-5,
        )
    assert is_idle(drafting)


def test_stop_strings_end_an_answer_within_its_drafts(
    drafting: jengine.LLM, text_engine: jengine.LLM
) -> None:
    """The answer is known by now; a piece of its middle ends it."""
    params_of = params()[4]
    (whole,) = text_engine.generate([PROMPTS[4]], params_of)
    params_of.stop = [whole.outputs[0].text[9:11]]
    found, expected = (
        llm.generate([PROMPTS[4]], params_of)[0].outputs[0] for llm in (drafting, text_engine)
    )
    assert found.text == expected.text and len(found.text) < 20
    assert found.token_ids == expected.token_ids and found.stop_reason == params_of.stop[0]


def test_rows_with_grammars_alone_take_fewer_steps(drafting: jengine.LLM) -> None:
    sampling = SamplingParams(
        temperature=0, max_tokens=30, structured_outputs=StructuredOutputsParams(regex="[a-z]{20}")
    )
    core = drafting.engine.in_process.core
    steps, accepted = [], []
    for _ in range(2):
        before = core.counts()
        drafting.generate([PROMPTS[1]], sampling)
        after = core.counts()
        steps.append(after.steps - before.steps)
        accepted.append(after.drafts.accepted - before.drafts.accepted)
    assert accepted[1] >= 10 and steps[1] <= steps[0] - 8, (steps, accepted)


@pytest.mark.slow
def test_drafts_of_the_device_give_the_same_answers(
    full_folder: Path, letters: Any, text_engine: jengine.LLM
) -> None:
    """A model that drafts for itself without masks is right where the grammar allows its token."""
    method = {"method": "draft_model", "model": str(full_folder), "num_speculative_tokens": 3}
    settings = {
        "speculative_config": {**method, "adaptive": False},
        "compilation_config": {"decode_rows": [32]},
    }
    anything = StructuredOutputsParams(regex="(.|\n){20,40}")
    wide = SamplingParams(temperature=0, max_tokens=30, structured_outputs=anything)
    expected = text_engine.generate(PROMPTS, params())
    [long] = text_engine.generate([PROMPTS[1]], wide)
    with tiny_engine(full_folder, tokenizer=letters, **settings) as llm:
        for _ in range(2):
            assert answers(llm.generate(PROMPTS, params())) == answers(expected)
        core = llm.engine.in_process.core
        before = core.counts()
        assert answers(llm.generate([PROMPTS[1]], wide)) == answers([long])
        after = core.counts()
        assert after.drafts.accepted - before.drafts.accepted >= 5
        assert after.steps - before.steps < len(long.outputs[0].token_ids)
        assert is_idle(llm)
