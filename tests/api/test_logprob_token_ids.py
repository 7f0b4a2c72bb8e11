"""logprob_token_ids: log-probabilities of ids that a request names, at each place of its answer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jengine
from jengine import SamplingParams
from jengine.errors import RequestError
from jengine.sampling.row_parameters import MAX_LOGPROB_IDS
from tests.api.engines import VOCAB, is_idle, tiny_engine

PROMPT = [5, 17, 40, 3]
USUAL: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
IDS = [40, 7, 96, 0]


@pytest.fixture(scope="module")
def llm(full_folder: Path) -> Iterator[jengine.LLM]:
    """An engine whose compiled variants cannot score ids, and which takes no logprobs at all."""
    made = tiny_engine(full_folder, "adjusted", max_logprobs=VOCAB)
    yield made
    assert is_idle(made)


def answers(llm: jengine.LLM, *each: dict[str, Any]) -> list[Any]:
    params = [SamplingParams(**{**USUAL, **one}) for one in each]
    outputs = llm.generate([{"prompt_token_ids": PROMPT}] * len(each), params)
    return [output.outputs[0] for output in outputs]


def assert_scored(found: Any, full: Any, ids: list[int]) -> None:
    """The tokens are those of the answer with all log-probabilities, and so are the numbers."""
    assert found.token_ids == full.token_ids
    assert len(found.logprobs) == len(found.token_ids)
    for token, table, whole in zip(found.token_ids, found.logprobs, full.logprobs, strict=True):
        assert list(table) == list(dict.fromkeys([token, *ids]))
        assert table[token].rank == whole[token].rank
        for rank, one in enumerate(ids, start=1):
            assert math.isclose(table[one].logprob, whole[one].logprob, rel_tol=1e-5)
            assert one == token or table[one].rank == rank


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"temperature": 1.0, "seed": 5},
        {"repetition_penalty": 1.5, "logit_bias": {7: 5.0}},
        {"allowed_token_ids": [7, 8, 9]},
    ],
)
def test_they_are_those_of_the_whole_vocabulary(llm: jengine.LLM, more: dict[str, Any]) -> None:
    full, found = answers(llm, {**more, "logprobs": -1}, {**more, "logprob_token_ids": IDS})
    assert_scored(found, full, IDS)
    assert math.isclose(found.cumulative_logprob, full.cumulative_logprob, rel_tol=1e-5)


def test_a_sampled_token_that_is_asked_for_keeps_its_rank_and_stands_first(
    llm: jengine.LLM,
) -> None:
    (plain,) = answers(llm, {})
    sampled = plain.token_ids[2]
    (found,) = answers(llm, {"logprob_token_ids": [7, sampled]})
    assert list(found.logprobs[2]) == [sampled, 7] and found.logprobs[2][sampled].rank == 1


def test_rows_beside_it_have_what_they_asked_for(llm: jengine.LLM) -> None:
    other = [3, 2, 1, 90, 91, 92]
    asked: list[dict[str, Any]] = [
        {"logprob_token_ids": IDS}, {"logprob_token_ids": other, "logprobs": 6},
        {"logprobs": 2}, {}, {"logprobs": -1}, {"logprobs": 0, "presence_penalty": 1.0},
    ]  # fmt: skip
    first, second, two, none, full, own = answers(llm, *asked)
    assert_scored(first, full, IDS)
    assert_scored(second, full, other)
    assert none.logprobs is None
    for table, whole in zip(two.logprobs, full.logprobs, strict=True):
        best = sorted(whole, key=lambda one: whole[one].rank)[:2]
        assert list(table) == best
        assert all(math.isclose(table[one].logprob, whole[one].logprob) for one in best)
    assert all(len(table) == VOCAB for table in full.logprobs)
    assert [list(table) for table in own.logprobs] == [[token] for token in own.token_ids]


def test_flat_arrays(llm: jengine.LLM) -> None:
    (found,) = answers(llm, {"logprob_token_ids": IDS, "flat_logprobs": True})
    assert found.logprobs.ids.tolist() == [[token, *IDS] for token in found.token_ids]
    assert found.logprobs.values.shape == (8, 5)


def test_as_many_as_may_be(llm: jengine.LLM) -> None:
    ids = [*range(VOCAB), *range(MAX_LOGPROB_IDS - VOCAB)]
    full, found = answers(llm, {"logprobs": -1}, {"logprob_token_ids": ids})
    assert_scored(found, full, ids[:VOCAB])


def test_no_ids_are_none(llm: jengine.LLM) -> None:
    none, chosen = answers(llm, {"logprob_token_ids": []}, {"logprob_token_ids": [], "logprobs": 0})
    assert none.logprobs is None and [len(table) for table in chosen.logprobs] == [1] * 8
    assert SamplingParams(logprob_token_ids=[4, 5]).num_logprobs == 2
    assert SamplingParams().num_logprobs is None and SamplingParams(logprobs=3).num_logprobs == 3


def test_what_is_refused(llm: jengine.LLM) -> None:
    most = MAX_LOGPROB_IDS
    with pytest.raises(RequestError, match=f"129 ids.*greater than max allowed: {most}"):
        SamplingParams(logprob_token_ids=[0] * (most + 1))
    with pytest.raises(RequestError, match="logprobs must equal len"):
        SamplingParams(logprob_token_ids=[1, 2], logprobs=3)
    for wrong in ("ab", [-1], [1.5], [True], 3):
        with pytest.raises(RequestError, match="logprob_token_ids"):
            SamplingParams(logprob_token_ids=wrong)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=f"logprob_token_ids has {VOCAB}"):
        answers(llm, {"logprob_token_ids": [0, VOCAB]})
