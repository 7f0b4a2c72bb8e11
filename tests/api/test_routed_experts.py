"""The experts that each token picked, as part of an answer: the same however requests run."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from jengine.errors import ConfigError, RequestError, UnsupportedFeature
from jengine.models.context import whole_sequences
from jengine.weights.abstract import with_values
from tests.api.engines import random_prompts, rebuilt, tiny_engine
from tests.models.tiny_models import write_tiny_native
from tests.server.serving import serving

PROMPTS = random_prompts(1, 17, 60, 130, 300)  # the last one takes two steps
GREEDY = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
LONGEST = 352
# Tokens that ran -> experts [tokens, layers, chosen].
Picked = Callable[[list[int]], np.ndarray]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_native(
        tmp_path_factory.mktemp("model"), "deepseek_v3", max_position_embeddings=768
    )


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[jengine.LLM]:
    with tiny_engine(folder, "sampled", enable_return_routed_experts=True) as engine:
        yield engine


@pytest.fixture(scope="module")
def picked(llm: jengine.LLM) -> Picked:
    """The experts of tokens in one pass over the whole sequence; the first layer has none."""

    @jax.jit
    def found(parameters: Any, tokens: jax.Array) -> jax.Array:
        model: Any = with_values(llm.engine.declared, parameters)
        context = whole_sequences(tokens.shape)
        context.experts = {}
        model(tokens, context)
        assert list(context.experts) == [1]
        experts = context.experts[1]
        return jnp.stack([jnp.zeros_like(experts), experts], axis=1)

    def of(tokens: list[int]) -> np.ndarray:
        whole = np.zeros((1, LONGEST), np.int32)
        whole[0, : len(tokens)] = tokens
        return np.asarray(found(llm.engine.loaded.parameters(), whole))[: len(tokens)]

    return of


def check(picked: Picked, outputs: list[jengine.RequestOutput]) -> None:
    for output in outputs:
        for answer in output.outputs:
            assert answer.routed_experts is not None
            assert answer.routed_experts.dtype == np.uint8
            ran = [*output.prompt_token_ids, *answer.token_ids][:-1]
            np.testing.assert_array_equal(answer.routed_experts, picked(ran))


def test_every_token_that_ran_has_its_experts(llm: jengine.LLM, picked: Picked) -> None:
    check(picked, llm.generate(PROMPTS, GREEDY))
    before = llm.stats().prefix_hits
    check(picked, llm.generate(PROMPTS, GREEDY))  # now prompts are found in the cache
    assert llm.stats().prefix_hits > before
    with rebuilt(llm, num_blocks=24) as small:
        check(picked, small.generate(PROMPTS, replace(GREEDY, max_tokens=50)))
        assert small.stats().preemptions > 0


def test_answers_to_one_prompt_share_its_blocks(llm: jengine.LLM, picked: Picked) -> None:
    params = replace(GREEDY, temperature=1.0, n=3, seed=1)
    with rebuilt(llm) as fresh:
        check(picked, fresh.generate(PROMPTS[3:], params))
        assert fresh.stats().prefix_hits > 0  # in the step that computes them, or while it runs


def test_an_answer_that_ends_early(llm: jengine.LLM, picked: Picked) -> None:
    (whole,) = llm.generate(PROMPTS[2], GREEDY)
    tokens = whole.outputs[0].token_ids
    end = next(i for i in range(3, 9) if tokens[i] not in tokens[:i])
    params = replace(GREEDY, stop_token_ids=[tokens[end]])
    (output,) = llm.generate(PROMPTS[2], params)
    assert len(output.outputs[0].token_ids) == end + 1
    check(picked, [output])


def test_the_prompts_first_tokens_may_be_left_out(llm: jengine.LLM) -> None:
    (whole,) = llm.generate(PROMPTS[2], GREEDY)
    for start in (1, 32, 60):
        (output,) = llm.generate(PROMPTS[2], replace(GREEDY, routed_experts_prompt_start=start))
        answer, expected = output.outputs[0], whole.outputs[0].routed_experts
        assert answer.routed_experts is not None and expected is not None
        np.testing.assert_array_equal(answer.routed_experts, expected[start:])
    with pytest.raises(RequestError, match="between 0 and the prompt length"):
        llm.generate(PROMPTS[2], replace(GREEDY, routed_experts_prompt_start=61))


def test_a_server_returns_them_as_base64(llm: jengine.LLM) -> None:
    (expected,) = llm.generate(PROMPTS[2], GREEDY)
    with serving(llm.engine) as client:
        body = {"prompt": PROMPTS[2], "temperature": 0, "max_tokens": 9, "ignore_eos": True,
                "return_token_ids": True}  # fmt: skip
        for start in (0, 40):
            answered = client.post(
                "/v1/completions", json={**body, "routed_experts_prompt_start": start}
            )
            assert answered.status_code == 200, answered.text
            (choice,) = answered.json()["choices"]
            array = np.load(io.BytesIO(base64.b64decode(choice["routed_experts"])))
            assert choice["token_ids"] == expected.outputs[0].token_ids
            assert expected.outputs[0].routed_experts is not None
            np.testing.assert_array_equal(array, expected.outputs[0].routed_experts[start:])


def test_unless_they_are_asked_for_there_are_none() -> None:
    with serving() as client:
        answered = client.post("/v1/completions", json={"prompt": "ab", "max_tokens": 2})
        (choice,) = answered.json()["choices"]
        assert choice["routed_experts"] is None


@pytest.mark.parametrize(
    ("family", "settings", "error", "said"),
    [
        ("llama", {}, ConfigError, "LlamaForCausalLM has no experts"),
        ("mixtral", {"num_scheduler_steps": 4}, UnsupportedFeature, "num_scheduler_steps=4"),
    ],
)
def test_where_there_are_none_it_is_refused(
    tmp_path: Path, family: str, settings: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=f"enable_return_routed_experts.*{said}"):
        tiny_engine(
            write_tiny_native(tmp_path, family, max_position_embeddings=768),
            enable_return_routed_experts=True,
            **settings,
        )


@pytest.mark.slow
def test_with_drafts_those_of_rejected_ones_are_left_out(folder: Path, picked: Picked) -> None:
    prompts = [[5, 6, 7, 8] * 5, *PROMPTS[1:3]]
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1,
              "prompt_lookup_max": 3, "adaptive": False}  # fmt: skip
    settings: dict[str, Any] = {
        "speculative_config": drafts, "enable_return_routed_experts": True,
        "compilation_config": {"decode_rows": [32]},
    }  # fmt: skip
    with tiny_engine(folder, "greedy", **settings) as llm:
        for _ in range(2):
            check(picked, llm.generate(prompts, replace(GREEDY, max_tokens=60)))
        drafted = llm.stats().drafts
        assert 0 < drafted.accepted < drafted.drafted
