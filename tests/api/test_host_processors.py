"""Logits processors of the host: classes in vLLM's form, between two halves of a step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jengine
from jengine import SamplingParams, StructuredOutputsParams
from jengine.errors import ConfigError, EngineDead, RequestError, UnsupportedFeature
from tests.api.engines import (
    SMALL_DEMO,
    answers,
    is_idle,
    logprob_rows,
    random_prompts,
    tiny_engine,
)
from tests.api.processor_functions import (
    Crooked,
    OneToken,
    SharperDraws,
    only_seven,
)

PROMPTS = random_prompts(1, 15, 33, 100, 60)
HERE = "tests.api.processor_functions"


@pytest.fixture(scope="module")
def host(full_folder: Path, letters: Any) -> Iterator[jengine.LLM]:
    classes = [OneToken, f"{HERE}:CountUp", SharperDraws]
    with tiny_engine(full_folder, tokenizer=letters, logits_processors=classes) as llm:
        yield llm


def test_a_call_from_within_a_step_does_not_wait_for_itself(
    host: jengine.LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []
    apply = OneToken.apply

    def nested(self: OneToken, logits: Any) -> Any:
        with pytest.raises(RequestError) as raised:
            host.generate(PROMPTS[0], params(), use_tqdm=False)
        refused.append(str(raised.value))
        return apply(self, logits)

    expected = answers(host.generate(PROMPTS[1], params(temperature=0), use_tqdm=False))
    monkeypatch.setattr(OneToken, "apply", nested)
    assert answers(host.generate(PROMPTS[1], params(temperature=0), use_tqdm=False)) == expected
    assert "while a step runs" in refused[0]


def params(**more: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 8, "ignore_eos": True, **more})


def kinds() -> list[SamplingParams]:
    """Requests that no processor changes."""
    return [
        params(temperature=0, logprobs=2),
        params(seed=5, top_k=20, logit_bias={7: 2.0}),
        params(temperature=0, repetition_penalty=1.3, prompt_logprobs=1),
        params(seed=3, min_p=0.02, logits_processors=[only_seven]),
        params(seed=4, structured_outputs=StructuredOutputsParams(regex="[a-z]{9}"), n=2),
    ]


@pytest.mark.slow
def test_requests_that_no_processor_changes_have_the_usual_answers(
    host: jengine.LLM, text_engine: jengine.LLM
) -> None:
    expected = text_engine.generate(PROMPTS, kinds())
    found = host.generate(PROMPTS, kinds())
    assert answers(found) == answers(expected)
    np.testing.assert_allclose(
        logprob_rows(found[0].outputs[0].logprobs, 2),
        logprob_rows(expected[0].outputs[0].logprobs, 2),
        atol=1e-5,
    )
    assert is_idle(host)


def test_each_request_says_what_becomes_of_it(host: jengine.LLM) -> None:
    """In one batch, whose requests end at different times and move."""
    asked = [
        params(max_tokens=3, extra_args={"target_token": 11}),
        params(temperature=0, max_tokens=9),
        params(max_tokens=20, extra_args={"target_token": 12}),
        params(max_tokens=5, extra_args={"counts": True}),
        params(max_tokens=30, extra_args={"counts": True}),
    ]
    plain = host.generate([PROMPTS[1]], asked[1])
    prompts = [PROMPTS[0], PROMPTS[1], PROMPTS[2], [9, 40], [5, 4]] * 3  # more than the rows
    found = [one.outputs[0].token_ids for one in host.generate(prompts, asked * 3)]
    expected = [
        [11] * 3, plain[0].outputs[0].token_ids, [12] * 20,
        list(range(41, 46)), list(range(5, 35)),
    ]  # fmt: skip
    assert found == expected * 3


def test_raw_log_probabilities_are_the_models(host: jengine.LLM, text_engine: jengine.LLM) -> None:
    found = host.generate([PROMPTS[1]], params(logprobs=3, extra_args={"target_token": 11}))
    forced = text_engine.generate([PROMPTS[1]], params(logprobs=3, logit_bias={11: 100}))
    assert found[0].outputs[0].token_ids == forced[0].outputs[0].token_ids == [11] * 8
    np.testing.assert_allclose(
        found[0].outputs[0].logprobs_array, forced[0].outputs[0].logprobs_array, atol=1e-5
    )


def test_processors_that_leave_greedy_answers_alone_see_draws(host: jengine.LLM) -> None:
    """One that keeps the best token only, over the temperature."""
    sharp = {"extra_args": {"sharp": True}}
    greedy, drawn, other = host.generate(
        [PROMPTS[2]] * 3,
        [params(temperature=0), params(temperature=2, seed=1, **sharp), params(seed=1)],
    )
    assert drawn.outputs[0].token_ids == greedy.outputs[0].token_ids != other.outputs[0].token_ids


def test_parameters_are_validated_with_the_request(host: jengine.LLM) -> None:
    with pytest.raises(RequestError, match="OneToken: target_token is 'x'"):
        host.generate([PROMPTS[0]], params(extra_args={"target_token": "x"}))
    with pytest.raises(RequestError, match="expected a dict of text"):
        SamplingParams(extra_args={"f": lambda: 0})
    assert is_idle(host)


def test_engines_without_any_refuse_extra_args(text_engine: jengine.LLM) -> None:
    with pytest.raises(RequestError, match="no logits processor that reads them"):
        text_engine.generate([PROMPTS[0]], params(extra_args={"target_token": 3}))
    text_engine.generate([PROMPTS[0]], params(extra_args={}))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}, "speculative"),
        ({"num_scheduler_steps": 4}, "num_scheduler_steps=4"),
    ],
)
def test_what_they_cannot_be_combined_with(
    full_folder: Path, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnsupportedFeature, match=f"OneToken, which runs on the host.*{words}"):
        tiny_engine(full_folder, logits_processors=[OneToken], **settings)


def test_only_classes_of_ours_are_taken(full_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"derived from jengine\.LogitsProcessor"):
        tiny_engine(full_folder, logits_processors=[dict])
    with pytest.raises(ConfigError, match=r"the class OnTheHost; expected a JAX function"):
        tiny_engine(full_folder, logits_processors=[f"{HERE}:OnTheHost"])


def test_a_wrong_shape_stops_the_engine_and_names_the_class(full_folder: Path) -> None:
    with (
        tiny_engine(full_folder, logits_processors=[Crooked]) as llm,
        pytest.raises(EngineDead, match=r"Crooked.apply returned an array of shape \(1, 3\)"),
    ):
        llm.generate([PROMPTS[0]], params())


@pytest.mark.slow
def test_names_cross_to_a_core_of_its_own() -> None:
    named = [f"{HERE}:OneToken"]
    with jengine.LLM("demo", multiprocess=True, logits_processors=named, **SMALL_DEMO) as llm:
        (output,) = llm.generate("hello", params(extra_args={"target_token": 7}))
        assert output.outputs[0].token_ids == [7] * 8
