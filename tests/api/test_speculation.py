"""Speculative decoding gives the tokens and log-probabilities of plain decoding.

Drafts come from a proposer that knows the plain answers and is wrong at some positions, so that
acceptance and rejection are both common, and from the real proposers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from jengine.assembly.model_source import open_model_source
from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.sizes.schedule_sizes import schedule_config
from jengine.assembly.sizes.step_sizes import runner_config
from jengine.counts import DraftCounts
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.scheduler.draft_sources import HostDrafts
from jengine.scheduler.drafting import Drafting
from tests.api.engines import (
    VOCAB,
    answers,
    is_idle,
    logprob_rows,
    random_prompts,
    rebuilt,
    tiny_engine,
)

DRAFTS = 3
LOGPROBS = 3
PROMPTS = random_prompts(1, 15, 16, 17, 33, 60, 100, 130)
NGRAM = {"method": "ngram", "num_speculative_tokens": DRAFTS, "prompt_lookup_min": 1}
SPECULATIVE: dict[str, Any] = {
    "speculative_config": NGRAM,
    "compilation_config": {"decode_rows": [32]},  # 8 requests of 1 + 3 tokens
}


@pytest.fixture(scope="module")
def full_engine(full_folder: Path) -> jengine.LLM:
    return tiny_engine(full_folder, **SPECULATIVE)


@pytest.fixture(scope="module")
def window_engine(window_folder: Path) -> jengine.LLM:
    return tiny_engine(window_folder, **SPECULATIVE)


@pytest.fixture(params=["full_engine", pytest.param("window_engine", marks=pytest.mark.slow)])
def llm(request: pytest.FixtureRequest) -> Iterator[jengine.LLM]:
    engine = request.getfixturevalue(request.param)
    yield engine
    assert is_idle(engine)


class AnswerProposer:
    """Proposes known answers, but for each `wrong`-th position."""

    def __init__(self, texts: list[list[int]], wrong: int) -> None:
        self.texts = texts
        self.wrong = wrong

    def begin(self, tokens: Sequence[int], prompt_length: int) -> AnswerRow:
        prompt = list(tokens[:prompt_length])
        [text] = [text for text in self.texts if text[:prompt_length] == prompt]
        return AnswerRow(text, self.wrong, len(tokens))


class AnswerRow:
    def __init__(self, text: list[int], wrong: int, known: int) -> None:
        self.text = text
        self.wrong = wrong
        self.known = known

    def extend(self, tokens: Sequence[int]) -> None:
        self.known += len(tokens)

    def propose(self, count: int, ahead: int = 0) -> np.ndarray:
        places = range(self.known, min(self.known + ahead + count, len(self.text)))
        return np.array(
            [(self.text[at] + (at % self.wrong == 0)) % VOCAB for at in places], np.int32
        )

    def close(self) -> None:
        pass


def params() -> list[SamplingParams]:
    """Everything that changes from one token to the next."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 1.0, "seed": 5, "top_k": 20, "logit_bias": {7: 2.0}},
        {"temperature": 0, "repetition_penalty": 1.3, "presence_penalty": 0.5},
        {"temperature": 1.2, "seed": 2**40, "frequency_penalty": 0.7, "min_tokens": 9},
        {"temperature": 0.8, "seed": 3, "top_p": 0.9, "min_p": 0.02},
    ]
    return [
        SamplingParams(**kinds[i % 5], max_tokens=15 + i, stop_token_ids=[3, 50], logprobs=LOGPROBS)
        for i in range(len(PROMPTS))
    ]


def plain_answers(llm: jengine.LLM) -> list[jengine.RequestOutput]:
    with rebuilt(llm, speculative=None) as plain:
        return plain.generate(PROMPTS, params())


def drafts_of(llm: jengine.LLM) -> DraftCounts:
    return llm.engine.in_process.core.counts().drafts


def same(found: list[jengine.RequestOutput], expected: list[jengine.RequestOutput]) -> None:
    assert answers(found) == answers(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.outputs[0].finish_reason == theirs.outputs[0].finish_reason
        np.testing.assert_allclose(
            logprob_rows(ours.outputs[0].logprobs, LOGPROBS),
            logprob_rows(theirs.outputs[0].logprobs, LOGPROBS),
            atol=1e-5,
        )


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("wrong", [1, 3, 1000])
def test_the_same_tokens_and_logprobs_as_without(
    llm: jengine.LLM, wrong: int, overlap: bool
) -> None:
    expected = plain_answers(llm)
    texts = [
        prompt + output.outputs[0].token_ids
        for prompt, output in zip(PROMPTS, expected, strict=True)
    ]

    def drafting(cache: CacheCoordinator) -> Drafting:
        source = HostDrafts(AnswerProposer(texts, wrong))
        return Drafting(source, cache, most=DRAFTS, most_rows=32, adaptive=False)

    with rebuilt(llm, decode_length=drafting, overlap=overlap) as speculating:
        same(speculating.generate(PROMPTS, params()), expected)
        counts = drafts_of(speculating)
        assert counts.drafted > 0
        assert (counts.accepted == 0) == (wrong == 1)
        if wrong == 1000:  # the last windows of an answer may end too early
            assert counts.accepted > 0.8 * counts.drafted
    with rebuilt(llm, decode_length=drafting, num_blocks=14) as small:
        same(small.generate(PROMPTS, params()), expected)


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_real_proposers_change_nothing(llm: jengine.LLM, method: str) -> None:
    expected = plain_answers(llm)
    speculative = llm.engine.schedule.speculative
    assert speculative is not None
    config = replace(speculative, method=method, adaptive=False)
    with rebuilt(llm, speculative=config) as speculating:
        for _ in range(2):  # answers of the first time are past outputs the second time
            same(speculating.generate(PROMPTS, params()), expected)
        assert drafts_of(speculating).drafted > 0


def test_text_that_repeats_takes_fewer_steps(full_engine: jengine.LLM) -> None:
    """A bias that forces one token makes a text that n-grams foresee."""
    sampling = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logit_bias={9: 100})
    before = full_engine.engine.in_process.core.counts().steps
    [output] = full_engine.generate([[5, 6, 7]], sampling)
    assert output.outputs[0].token_ids == [9] * 40
    steps = full_engine.engine.in_process.core.counts().steps - before
    assert steps <= 16
    counts = drafts_of(full_engine)
    assert counts.accepted > 20


def test_what_drafts_cannot_be_combined_with(full_folder: Path) -> None:
    for settings, named in (
        ({"num_scheduler_steps": 4}, "num_scheduler_steps=4"),
        ({"deterministic": True, "attention_backend": "xla"}, "deterministic=True"),
    ):
        with pytest.raises(UnsupportedFeature, match=named):
            tiny_engine(full_folder, **{**SPECULATIVE, "compilation_config": {}}, **settings)
    args = EngineArgs(model=full_folder, speculative_config=NGRAM, skip_tokenizer_init=True)
    config = open_model_source(args.groups.model).config
    with pytest.raises(UnsupportedFeature, match="2 pipeline stages"):
        runner_config(args.groups, config, schedule_config(args.groups, config), stages=2)
    with pytest.raises(ConfigError, match="num_speculative_tokens"):
        EngineArgs(model=full_folder, speculative_config={"method": "ngram"})
