"""Prompts as embeddings: rows of the model's own embedding answer as the tokens do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from jengine.errors import RequestError, UnsupportedFeature
from tests.api.engines import answers, is_idle, random_prompts, rebuilt, tiny_engine
from tests.api.processor_functions import OneToken

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=3)
PENALISED = SamplingParams(
    temperature=0.7, seed=3, max_tokens=12, ignore_eos=True, frequency_penalty=0.5
)
PROMPTS = random_prompts(5, 40, 130, 64)


@pytest.fixture(scope="module", params=["auto", pytest.param("xla", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest, full_folder: Path) -> Iterator[jengine.LLM]:
    backend = {} if request.param == "auto" else {"attention_backend": "xla"}
    marks = tiny_engine(full_folder, enable_prompt_embeds=True, **backend)
    yield marks
    assert is_idle(marks)
    marks.shutdown()


@pytest.fixture(scope="module")
def table(engine: jengine.LLM) -> np.ndarray:
    return np.asarray(engine.engine.loaded.parameters()["embed.weight"], np.float32)


def looked_up(table: np.ndarray, prompts: list[list[int]]) -> list[dict[str, Any]]:
    return [{"prompt_embeds": table[prompt]} for prompt in prompts]


def test_rows_of_the_embedding_answer_as_tokens_do(engine: jengine.LLM, table: np.ndarray) -> None:
    expected = engine.generate(PROMPTS, GREEDY)
    engine.reset_prefix_cache()
    found = engine.generate(looked_up(table, PROMPTS), GREEDY)
    assert answers(found) == answers(expected)
    for one, other in zip(found, expected, strict=True):
        mine, theirs = one.outputs[0].logprobs_array, other.outputs[0].logprobs_array
        np.testing.assert_array_equal(mine, theirs)
        assert len(one.prompt_token_ids) == len(other.prompt_token_ids)


def test_arrays_of_every_kind_beside_token_prompts(engine: jengine.LLM, table: np.ndarray) -> None:
    expected = answers(engine.generate(PROMPTS, PENALISED))
    half = jnp.asarray(table, jnp.bfloat16)
    mixed = [
        PROMPTS[0],
        {"prompt_embeds": jnp.asarray(table)[jnp.asarray(PROMPTS[1])], "prompt": "shown"},
        {"prompt_token_ids": PROMPTS[2]},
        {"prompt_embeds": table[PROMPTS[3]][None].astype(np.float64)},
    ]
    found = engine.generate(mixed, PENALISED)
    assert answers(found) == expected and found[1].prompt == "shown"
    (rounded,) = engine.generate({"prompt_embeds": half[jnp.asarray(PROMPTS[1])]}, GREEDY)
    exact = np.asarray(half, np.float32)[PROMPTS[1]]
    assert answers([rounded]) == answers(engine.generate({"prompt_embeds": exact}, GREEDY))


def test_prefixes_are_cached_by_content(engine: jengine.LLM, table: np.ndarray) -> None:
    engine.reset_prefix_cache()
    block = engine.engine.cache.block_size
    rows = table[PROMPTS[2]]
    (first,) = engine.generate({"prompt_embeds": rows}, GREEDY)
    (again,) = engine.generate({"prompt_embeds": rows.copy()}, GREEDY)
    assert first.num_cached_tokens == 0 and again.num_cached_tokens == 129 // block * block
    assert answers([again]) == answers([first])
    other = rows.copy()
    other[2 * block + 1] += 0.5
    (changed,) = engine.generate({"prompt_embeds": other}, GREEDY)
    assert changed.num_cached_tokens == 2 * block
    (placeholders,) = engine.generate([0] * len(rows), GREEDY)
    assert placeholders.num_cached_tokens == 0, "the ids that stand for rows are no content"
    assert len(engine.generate({"prompt_embeds": rows}, GREEDY.clone(n=1))[0].outputs) == 1


def test_chunks_and_preemption(engine: jengine.LLM, table: np.ndarray) -> None:
    params = GREEDY.clone(max_tokens=60, logprobs=None)
    prompts = random_prompts(100, 90, 80, 70, seed=5)
    expected = answers(engine.generate(prompts, params))
    with rebuilt(engine, num_blocks=24, long_prefill_token_threshold=32) as small:
        found = answers(small.generate(looked_up(table, prompts), params))
        assert small.stats().preemptions > 0
    assert found == expected


def test_batches_without_pay_nothing(engine: jengine.LLM, table: np.ndarray) -> None:
    engine.generate(looked_up(table, PROMPTS), GREEDY)
    (entry,) = [one for one in engine.ledger.entries.values() if one.features.embeds]
    before = entry.useful_tokens
    engine.generate(PROMPTS, GREEDY)
    assert entry.useful_tokens == before, "they run the programs without"
    engine.reset_prefix_cache()
    engine.generate(looked_up(table, PROMPTS[:1]), GREEDY)
    assert entry.useful_tokens == before + len(PROMPTS[0]), "decodes do, too"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (np.ones((2, 3)), r"shape \(2, 3\); expected \[tokens, 32\]"),
        (np.ones((0, 32)), "shape"),
        (np.ones(64), "shape"),
        (np.ones((2, 32), np.int32), "dtype int32"),
        (np.full((2, 32), np.nan), "NaN"),
        ([[1.0] * 32], "is a list"),
        (np.ones((768, 32)), "768 embeddings"),
    ],
)
def test_what_is_refused(engine: jengine.LLM, given: Any, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        engine.generate({"prompt_embeds": given}, GREEDY)
    with pytest.raises(RequestError, match="both given"):
        engine.generate({"prompt_embeds": given, "prompt_token_ids": [1]}, GREEDY)


@pytest.mark.parametrize(
    ("rows", "ids"),
    [
        (b"xx", [0]),
        (b"", [0]),
        (np.ones((2, 32), np.float32).tobytes(), [0]),
        (np.ones((2, 32), np.float32).tobytes(), [1, 2]),
        (np.ones((2, 32), np.float32).tobytes(), None),
    ],
)
def test_bytes_that_were_not_rendered(engine: jengine.LLM, rows: bytes, ids: Any) -> None:
    with pytest.raises(RequestError, match="do not belong to them"):
        engine.generate({"prompt_embeds": rows, "prompt_token_ids": ids}, GREEDY)
    assert engine.generate(PROMPTS[:1], GREEDY)[0].outputs[0].token_ids, "the engine goes on"


def test_a_rendered_prompt_is_checked_like_an_array(engine: jengine.LLM) -> None:
    rows = np.full((2, 32), np.nan, np.float32).tobytes()
    with pytest.raises(RequestError, match="NaN"):
        engine.generate({"prompt_embeds": rows, "prompt_token_ids": [0, 0]}, GREEDY)


def test_what_it_does_not_go_with(engine: jengine.LLM, table: np.ndarray) -> None:
    (prompt,) = looked_up(table, PROMPTS[:1])
    with pytest.raises(RequestError, match="embeddings are no tokens"):
        engine.generate(prompt, SamplingParams(prompt_logprobs=1))
    with pytest.raises(UnsupportedFeature, match="as embeddings"):
        engine.beam_search([prompt], jengine.BeamSearchParams(2, 2))


def test_processors_of_the_host_change_their_answers(
    engine: jengine.LLM, table: np.ndarray, full_folder: Path
) -> None:
    expected = answers(engine.generate(PROMPTS[:1], GREEDY))
    forced = GREEDY.clone(extra_args={"target_token": 7})
    settings = {"enable_prompt_embeds": True, "logits_processors": [OneToken]}
    with tiny_engine(full_folder, **settings) as processed:
        given = looked_up(table, PROMPTS[:2])
        assert answers(processed.generate(given, [GREEDY, forced])) == [*expected, [[7] * 12]]
