"""Several decode steps in one call equal single steps, and end when every request has ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from jengine.assembly.model_source import open_model_source
from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.sizes.schedule_sizes import schedule_config
from jengine.assembly.sizes.step_sizes import runner_config
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.plan import Entries, Entry, NewBlocks, NewRow, Plan, RowSampling, packed_tokens
from jengine.runner.variants.buckets import Bucket
from tests.api.engines import (
    answers,
    is_idle,
    logprob_rows,
    random_prompts,
    rebuilt,
    tiny_engine,
)

STEPS = 6
PROMPTS = random_prompts(1, 15, 16, 17, 33, 60, 100, 130)
LOGPROBS = 3


@pytest.fixture(scope="module")
def burst_engine(full_folder: Path) -> jengine.LLM:
    return tiny_engine(full_folder, num_scheduler_steps=STEPS)


@pytest.fixture(scope="module")
def window_burst_engine(window_folder: Path) -> jengine.LLM:
    return tiny_engine(window_folder, num_scheduler_steps=STEPS)


@pytest.fixture(
    params=["burst_engine", pytest.param("window_burst_engine", marks=pytest.mark.slow)]
)
def llm(request: pytest.FixtureRequest) -> Iterator[jengine.LLM]:
    engine = request.getfixturevalue(request.param)
    yield engine
    assert is_idle(engine)


def burst_calls(llm: jengine.LLM) -> int:
    return sum(
        entry.hits
        for entry in llm.ledger.entries.values()
        if isinstance(entry.bucket, Bucket) and entry.bucket.is_multi_step
    )


def params() -> list[SamplingParams]:
    """Everything that changes from one run of a burst to the next."""
    kinds = [
        {"temperature": 0},
        {"temperature": 1.0, "seed": 5},
        {"temperature": 0, "repetition_penalty": 1.3, "presence_penalty": 0.5},
        {"temperature": 1.2, "seed": 2**40, "frequency_penalty": 0.7, "min_tokens": 9},
    ]
    return [
        SamplingParams(**kinds[i % 4], max_tokens=15 + i, stop_token_ids=[3, 50], logprobs=LOGPROBS)
        for i in range(len(PROMPTS))
    ]


def test_the_same_tokens_and_logprobs_as_in_single_steps(llm: jengine.LLM) -> None:
    with rebuilt(llm, num_scheduler_steps=1) as single:
        expected = single.generate(PROMPTS, params())
        assert burst_calls(llm) == 0
    found = llm.generate(PROMPTS, params())
    assert burst_calls(llm) > 0
    assert answers(found) == answers(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.outputs[0].finish_reason == theirs.outputs[0].finish_reason
        np.testing.assert_allclose(
            logprob_rows(ours.outputs[0].logprobs, LOGPROBS),
            logprob_rows(theirs.outputs[0].logprobs, LOGPROBS),
            atol=1e-5,
        )
    again = llm.generate(PROMPTS, params())  # what bursts have cached is as good
    assert answers(again) == answers(expected)


def test_with_little_memory(llm: jengine.LLM) -> None:
    with rebuilt(llm, num_scheduler_steps=1) as single:
        expected = answers(single.generate(PROMPTS, params()))
    with rebuilt(llm, num_blocks=14) as small:
        assert answers(small.generate(PROMPTS, params())) == expected


def test_a_burst_ends_when_every_row_has_ended(burst_engine: jengine.LLM) -> None:
    [prompt] = random_prompts(7, seed=9)
    [output] = burst_engine.generate(
        [prompt], SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    )
    tokens = output.outputs[0].token_ids
    ending = next(i for i in range(1, 5) if tokens[i] not in tokens[:i])
    sampling = RowSampling(stop_ids=[tokens[ending]])
    runner = burst_engine.engine.runners[0]
    first = Plan(
        10_000, Entries.of([Entry(0, 0, 7)]), 0,
        [NewRow(0, packed_tokens(prompt), 7, sampling)], [NewBlocks(0, 0, 0, [1, 2])],
    )  # fmt: skip
    assert runner.submit(first).result().tokens.tolist() == [tokens[:1]]
    burst = Plan(10_001, Entries.of([Entry(0, 7, STEPS)]), 1, repeats=STEPS)
    ran = tokens[1 : ending + 1]
    assert runner.submit(burst).result().tokens.tolist() == [ran + [-1] * (STEPS - len(ran))]
    # The next one was queued before anybody knew; it has nothing to do.
    queued = Plan(10_002, Entries.of([Entry(0, 7 + STEPS, 2)]), 1, repeats=2)
    assert runner.submit(queued).result().tokens.tolist() == [[-1, -1]]
    burst_engine.engine.in_process.core.reset()


def test_a_stop_string_within_a_burst(full_folder: Path, letters: object) -> None:
    sampling = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
    with tiny_engine(full_folder, tokenizer=letters, num_scheduler_steps=STEPS) as llm:
        [whole] = llm.generate("Hello", SamplingParams(**sampling))
        text = whole.outputs[0].text
        stop = text[8:10]
        [cut] = llm.generate("Hello", SamplingParams(**sampling, stop=[stop]))
        assert cut.outputs[0].text == text[: text.index(stop)]
        assert cut.outputs[0].stop_reason == stop
        assert is_idle(llm)


def test_what_a_burst_cannot_be_combined_with(full_folder: Path) -> None:
    with pytest.raises(ConfigError, match="num_scheduler_steps=4 with deterministic=True"):
        tiny_engine(full_folder, num_scheduler_steps=4, deterministic=True, attention_backend="xla")
    with pytest.raises(ConfigError, match="num_scheduler_steps=0: expected an integer"):
        tiny_engine(full_folder, num_scheduler_steps=0)
    args = EngineArgs(model=full_folder, num_scheduler_steps=4, skip_tokenizer_init=True)
    config = open_model_source(args.groups.model).config
    with pytest.raises(UnsupportedFeature, match="num_scheduler_steps=4 with 2 pipeline stages"):
        runner_config(args.groups, config, schedule_config(args.groups, config), stages=2)


@pytest.mark.slow
def test_strict_mode_has_compiled_bursts(full_folder: Path) -> None:
    with tiny_engine(
        full_folder, enforce_eager=False, strict=True, num_scheduler_steps=STEPS
    ) as llm:
        llm.generate(PROMPTS, params())
        assert burst_calls(llm) > 0
        assert llm.stats().compiles_after_warm_up == 0
