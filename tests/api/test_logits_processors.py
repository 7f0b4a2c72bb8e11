"""Logits processors: functions of the caller's that run inside the step, for their rows alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from jax import Array

import jengine
from jengine import SamplingParams, StructuredOutputsParams
from jengine.errors import ConfigError, RequestError, UnsupportedFeature
from jengine.sampling.processor_sets import MOST_SETS, ProcessorSets
from tests.api.engines import SMALL_DEMO, is_idle, rebuilt, tiny_engine
from tests.api.processor_functions import OnTheHost, count_up, only_seven

PROMPT = {"prompt_token_ids": [5, 9, 40]}
FUNCTIONS = "tests.api.processor_functions"


def params(*functions: Any, **more: Any) -> SamplingParams:
    given = {"max_tokens": 6, "ignore_eos": True, "seed": 3, **more}
    return SamplingParams(logits_processors=list(functions) or None, **given)


def tokens(output: jengine.RequestOutput) -> list[int]:
    return output.outputs[0].token_ids


def test_each_row_has_its_own_functions(llm: jengine.LLM) -> None:
    (alone,) = llm.generate(PROMPT, params())
    asked = [params(only_seven), params(), params(count_up), params(only_seven, count_up)]
    found = [tokens(output) for output in llm.generate([PROMPT] * 4, asked)]
    assert found == [[7] * 6, tokens(alone), [41, 42, 43, 44, 45, 46], [41, 42, 43, 44, 45, 46]]


@pytest.mark.slow
def test_they_see_tokens_that_were_computed_again(llm: jengine.LLM) -> None:
    prompts = [{"prompt_token_ids": list(range(3 + n, 33 + n))} for n in range(6)]
    with rebuilt(llm, num_blocks=20, max_num_batched_tokens=64, max_model_len=256) as small:
        outputs = small.generate(prompts, params(count_up, max_tokens=40))
        assert small.stats().preemptions > 0
    for n, output in enumerate(outputs):
        assert tokens(output) == [33 + n + i for i in range(40)]


@pytest.mark.slow
@pytest.mark.slow
def test_log_probabilities_and_grammars(text_engine: jengine.LLM) -> None:
    def no_a(logits: Array) -> Array:
        return logits.at[text_engine.get_tokenizer().convert_tokens_to_ids("a")].set(-jnp.inf)

    ruled = StructuredOutputsParams(regex="[ab]{4}|c")
    asked = SamplingParams(
        logits_processors=[no_a], structured_outputs=ruled, max_tokens=8, seed=1, logprobs=1
    )
    (output,) = text_engine.generate("hello", asked)
    assert re.fullmatch("b{4}|c", output.outputs[0].text)
    first = next(iter(output.outputs[0].logprobs[0].values()))
    assert first.logprob < -1e-3, "raw log-probabilities are those before the functions"
    # A function that forbids what the grammar wants has no say.
    asked = SamplingParams(
        logits_processors=[only_seven], structured_outputs=StructuredOutputsParams(regex="bbb"),
        max_tokens=8,
    )  # fmt: skip
    (output,) = text_engine.generate("hello", asked)
    assert output.outputs[0].finish_reason == "error" or output.outputs[0].text == "bbb"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("f", "expected a list of JAX functions"),
        ([3], "expected a list of JAX functions"),
        ([OnTheHost], "class OnTheHost"),
        ([lambda logits: logits[:3]], "expected that of the logits"),
        ([lambda logits: logits if logits[0] > 0 else -logits], "fails in JAX"),
        ([lambda a, b, c: a], "fails in JAX"),
    ],
)
def test_what_cannot_run_in_a_step_is_refused(llm: jengine.LLM, given: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        llm.generate(PROMPT, SamplingParams(logits_processors=given))
    assert is_idle(llm)


def test_an_engine_keeps_a_number_of_sets() -> None:
    sets = ProcessorSets(lambda function: None)
    functions = [lambda logits, n=n: logits + n for n in range(MOST_SETS + 1)]
    numbers = [sets.number_of([one]) for one in functions[:MOST_SETS]]
    assert numbers == list(range(1, MOST_SETS + 1)) == [sets.number_of([f]) for f in functions[:-1]]
    with pytest.raises(RequestError, match="give the same objects"):
        sets.number_of([functions[-1]])
    assert sets.number_of([]) == 0


@pytest.mark.slow
def test_those_of_the_engine_run_for_all_requests(full_folder: Path) -> None:
    with tiny_engine(full_folder, logits_processors=[f"{FUNCTIONS}:count_up"]) as llm:
        found = llm.generate([PROMPT] * 2, [params(), params(only_seven)])
    assert [tokens(one) for one in found] == [[41, 42, 43, 44, 45, 46], [7] * 6]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("a:b", "expected a list"),
        ([OnTheHost], "expected a list of JAX functions"),
        (["no_such_module:f"], "cannot be imported"),
        ([f"{FUNCTIONS}:OnTheHost"], "is the class OnTheHost"),
    ],
)
def test_engines_refuse_what_is_no_function(full_folder: Path, given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        tiny_engine(full_folder, logits_processors=given)


@pytest.mark.slow
def test_functions_do_not_cross_to_other_processes_but_names_do() -> None:
    with pytest.raises(ConfigError, match="Give its name"):
        jengine.LLM("demo", multiprocess=True, logits_processors=[only_seven], **SMALL_DEMO)
    named = [f"{FUNCTIONS}:only_seven"]
    with jengine.LLM("demo", multiprocess=True, logits_processors=named, **SMALL_DEMO) as llm:
        (output,) = llm.generate("hello", params())
        assert tokens(output) == [7] * 6
        with pytest.raises(UnsupportedFeature, match="cannot be sent there"):
            llm.generate("hello", params(count_up))
