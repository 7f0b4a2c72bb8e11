"""Structured output through LLM and AsyncLLM: a real model follows grammars, on the device."""

from __future__ import annotations

import asyncio
import json
import math
import re
from typing import Any

import pytest

import jengine
from jengine import SamplingParams, StructuredOutputsParams
from jengine.errors import RequestError, UnsupportedFeature
from jengine.text.tokenizer import load_tokenizer
from jengine.weights.resolve import resolve_model
from tests.api.engines import SMALL_DEMO, is_idle

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["red", "green"]},
    },
    "required": ["name", "count", "kind"],
    "additionalProperties": False,
}


def ruled(given: dict[str, Any], **more: Any) -> SamplingParams:
    structured = StructuredOutputsParams(**given)
    return SamplingParams(structured_outputs=structured, **{"max_tokens": 60, **more})


def text_of(output: Any) -> str:
    assert output.outputs[0].finish_reason == "stop", output.outputs[0]
    return output.outputs[0].text


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_follow_their_grammars_beside_free_ones(
    text_engine: jengine.LLM, temperature: float
) -> None:
    free = SamplingParams(temperature=temperature, max_tokens=20, seed=7, ignore_eos=True)
    expected = text_engine.generate("hello", free)[0].outputs[0].token_ids
    more = {"temperature": temperature, "seed": 3}
    params = [
        ruled({"regex": "[a-c]{4}"}, **more),
        free,
        ruled({"choice": ["yes", "no"]}, **more),
        ruled({"grammar": 'root ::= "q" [0-9] [0-9]'}, **more),
        ruled({"json": {"enum": [1, "a", None]}}, **more),
    ]
    found = text_engine.generate(["hello"] * len(params), params)
    assert re.fullmatch("[a-c]{4}", text_of(found[0]))
    assert found[1].outputs[0].token_ids == expected, "free rows do not notice"
    assert text_of(found[2]) in ("yes", "no")
    assert re.fullmatch("q[0-9]{2}", text_of(found[3]))
    assert json.loads(text_of(found[4])) in (1, "a", None)
    assert is_idle(text_engine)


def test_answers_do_not_depend_on_what_runs_beside_them(text_engine: jengine.LLM) -> None:
    params = [ruled({"regex": "[a-z ]{30}"}, seed=number) for number in range(6)]
    together = text_engine.generate(["hello"] * 6, params)
    for number, one in enumerate(params):
        (alone,) = text_engine.generate("hello", one)
        assert alone.outputs[0].token_ids == together[number].outputs[0].token_ids


def test_log_probabilities_are_those_of_allowed_tokens(text_engine: jengine.LLM) -> None:
    (found,) = text_engine.generate("hello", ruled({"regex": "(a|b)c"}, logprobs=2))
    first, second = found.outputs[0].logprobs[:2]
    best = sorted((item.logprob for item in first.values()), reverse=True)
    assert math.isclose(sum(math.exp(value) for value in best[:2]), 1, abs_tol=1e-4)
    assert math.isclose(max(item.logprob for item in second.values()), 0, abs_tol=1e-4)


def test_several_answers_and_penalties(text_engine: jengine.LLM) -> None:
    params = ruled({"regex": "[a-c]{6}"}, n=3, repetition_penalty=1.5, seed=1)
    (found,) = text_engine.generate("hello", params)
    assert all(re.fullmatch("[a-c]{6}", one.text) for one in found.outputs)


def test_the_grammar_begins_after_reasoning(text_engine: jengine.LLM) -> None:
    allowed = {"allowed_token_ids": [2, 3, 4]}  # the end, "!" and a quotation mark
    given = {"regex": '["]{3}', "begins_after": "!"}
    (found,) = text_engine.generate("hello", ruled(given, seed=2, max_tokens=200, **allowed))
    text = text_of(found)
    free, _, rest = text.partition("!")
    assert set(free) <= {'"'} and rest == '"""'


def test_bad_grammars_are_refused_before_anything_is_queued(text_engine: jengine.LLM) -> None:
    for given, words in (
        ({"regex": "(a"}, "unclosed group"),
        ({"json": {"type": "array", "uniqueItems": True}}, "the keyword uniqueItems"),
    ):
        with pytest.raises(RequestError, match=words):
            text_engine.generate("hello", ruled(given))
    assert is_idle(text_engine)


def test_an_engine_without_a_tokenizer_says_so(full_engine: jengine.LLM) -> None:
    with pytest.raises(UnsupportedFeature, match="needs a tokenizer"):
        full_engine.generate({"prompt_token_ids": [1, 2]}, ruled({"regex": "a"}))


def test_the_demo_model_writes_valid_json() -> None:
    with jengine.LLM("demo", **SMALL_DEMO) as llm:
        structured = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)
        params = [
            SamplingParams(
                structured_outputs=structured, max_tokens=100, seed=seed, temperature=seed / 2
            )
            for seed in range(3)
        ]
        for output in llm.generate(["Make a thing."] * 3, params):
            value = json.loads(text_of(output))
            assert set(value) == {"name", "count", "kind"}
            assert len(value["name"]) <= 6 and 0 <= value["count"] <= 99


@pytest.mark.slow
@pytest.mark.parametrize("given", ["the folder's", "an object"])
def test_a_core_in_another_process_has_the_tokenizer_of_its_front(given: str) -> None:
    tokenizer = load_tokenizer(resolve_model("demo")).hf if given == "an object" else None

    async def run() -> str:
        async with jengine.AsyncLLM(
            "demo", multiprocess=True, tokenizer=tokenizer,
            logits_processors=["tests.api.processor_functions:NoTransformers"], **SMALL_DEMO,
        ) as llm:  # fmt: skip
            structured = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)
            params = SamplingParams(structured_outputs=structured, max_tokens=100, temperature=0)
            last = None
            async for output in llm.generate("Make a thing.", params):
                last = output
            return text_of(last)

    assert set(json.loads(asyncio.run(run()))) == {"name", "count", "kind"}
