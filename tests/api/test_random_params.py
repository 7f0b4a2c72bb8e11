"""A request with any `SamplingParams` is answered in a batch as it is alone, with each feature."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

import jengine
from jengine import SamplingParams
from jengine.logprobs import StepLogprobs
from tests.api.engines import is_idle, random_prompts, rebuilt, tiny_engine
from tests.api.random_params import FIELDS, sampling_params

LENGTHS = (1, 15, 16, 17, 40, 100)
REQUESTS = st.lists(st.tuples(st.sampled_from(LENGTHS), sampling_params()), min_size=2, max_size=6)
Requests = list[tuple[int, SamplingParams]]
DRAFTS = {"compilation_config": {"decode_rows": [32]}}
BATCHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunks": {"max_num_batched_tokens": 32},
    "preemption": {"num_blocks": 12, "prefix_caching": False},
    "one step after the other": {"overlap": False},
}
ENGINES: dict[str, dict[str, Any]] = {
    "ngram": {
        "speculative_config": {
            "method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1,
        },
        **DRAFTS,
    },
    "suffix": {"speculative_config": {"method": "suffix", "num_speculative_tokens": 3}, **DRAFTS},
    "several steps": {"num_scheduler_steps": 4},
    "offloading": {"kv_offloading_size": 0.01},
}  # fmt: skip
# CI searches the same examples each time: more of them would find nothing new.
MANY = 30 if "CI" in os.environ else 150
MARKS = {"reasoning_config": {"reasoning_start_str": "(", "reasoning_end_str": "so)"}}


def test_each_field_has_a_strategy() -> None:
    assert set(FIELDS) == {one.name for one in fields(SamplingParams)}


@pytest.fixture(scope="module")
def engine(full_folder: Path, letters: PreTrainedTokenizerFast) -> jengine.LLM:
    return tiny_engine(full_folder, tokenizer=letters, **MARKS)


def test_in_a_batch_as_alone(engine: jengine.LLM) -> None:
    search(engine, partial(rebuilt, engine), 8)


@pytest.mark.slow
@pytest.mark.parametrize("batch", BATCHES)
def test_in_any_batch_as_alone(engine: jengine.LLM, batch: str) -> None:
    search(engine, partial(rebuilt, engine, **BATCHES[batch]), MANY)


@pytest.mark.slow
@pytest.mark.parametrize("feature", ENGINES)
def test_with_a_feature_as_without(
    engine: jengine.LLM, full_folder: Path, letters: PreTrainedTokenizerFast, feature: str
) -> None:
    with tiny_engine(full_folder, tokenizer=letters, **MARKS, **ENGINES[feature]) as other:
        search(engine, partial(as_it_is, other), MANY)


@contextmanager
def as_it_is(llm: jengine.LLM) -> Iterator[jengine.LLM]:
    yield llm


Batch = Callable[[], AbstractContextManager[jengine.LLM]]


def search(engine: jengine.LLM, batch: Batch, examples: int) -> None:
    """Random requests, each alone in an engine and all together in another."""

    # Each attempt to shrink what fails would run all of it again.
    @settings(
        max_examples=examples,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.reuse, Phase.generate],
        print_blob=True,
    )
    @given(requests=REQUESTS)
    def compare(requests: Requests) -> None:
        prompts = random_prompts(*(length for length, _ in requests))
        params = [one for _, one in requests]
        with rebuilt(engine, prefix_caching=False, overlap=False) as alone:
            expected = [
                answer(output)
                for pair in zip(prompts, params, strict=True)
                for output in alone.generate([pair[0]], [pair[1]])
            ]
        with batch() as together:
            for _ in range(2):  # the second time with the prompts in the prefix cache
                for found, one in zip(together.generate(prompts, params), expected, strict=True):
                    assert answer(found) == one
            assert is_idle(together)

    compare()


def answer(output: jengine.RequestOutput) -> dict[str, Any]:
    """All that a request has been answered."""
    return {
        "error": output.error,
        "prompt_logprobs": table(output.prompt_logprobs),
        "outputs": [
            {
                "tokens": list(one.token_ids), "text": one.text, "logprobs": table(one.logprobs),
                "finish": (one.finish_reason, one.stop_reason),
            }
            for one in output.outputs
        ],
    }  # fmt: skip


def table(given: Any) -> Any:
    """Log-probabilities by position and token."""
    if given is None or isinstance(given, StepLogprobs):
        return given and (given.ids.tolist(), given.values.tolist(), given.rank.tolist())
    return [
        row and [(token, one.logprob, one.rank, one.decoded_token) for token, one in row.items()]
        for row in given
    ]
