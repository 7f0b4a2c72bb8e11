"""The engine's copy of sampling parameters: checked once, and out of reach of later changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import jengine
from jengine import RequestOutputKind, SamplingParams
from jengine.errors import RequestError
from tests.engine.scripted import scripted_engine, told

PROMPT = [5, 6, 7]


@pytest.fixture
def llm() -> Iterator[jengine.LLM]:
    with jengine.LLM.over(scripted_engine()) as llm:
        yield llm


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[SamplingParams]:
    """The objects that were checked, one item per check."""
    found: list[SamplingParams] = []
    check = SamplingParams.__post_init__

    def counted(params: SamplingParams) -> None:
        found.append(params)
        check(params)

    monkeypatch.setattr(SamplingParams, "__post_init__", counted)
    return found


def tokens(outputs: list[jengine.RequestOutput]) -> list[list[int]]:
    return [one.token_ids for output in outputs for one in output.outputs]


@pytest.mark.parametrize("n", [1, 3])
def test_parameters_are_checked_once(
    llm: jengine.LLM, checks: list[SamplingParams], n: int
) -> None:
    params = SamplingParams(max_tokens=4, n=n, stop_token_ids=[96], logit_bias={3: 1.0})
    outputs = llm.generate([PROMPT, PROMPT], params, use_tqdm=False)
    assert tokens(outputs) == [told(PROMPT, 4)] * 2 * n
    assert len(list(llm.stream(PROMPT, params))) == 4
    assert checks == [params]


def test_a_default_is_made_once_for_all_prompts(
    llm: jengine.LLM, checks: list[SamplingParams]
) -> None:
    outputs = llm.generate([PROMPT, PROMPT], use_tqdm=False)
    assert tokens(outputs) == [told(PROMPT, 5)] * 2
    assert len(checks) == 1


def test_fields_that_were_set_are_checked_again(
    llm: jengine.LLM, checks: list[SamplingParams]
) -> None:
    params = SamplingParams(max_tokens=4)
    params.max_tokens = 2
    assert tokens(llm.generate(PROMPT, params, use_tqdm=False)) == [told(PROMPT, 2)]
    assert len(checks) == 2
    params.temperature = -1.0
    with pytest.raises(RequestError, match="temperature=-1"):
        llm.generate(PROMPT, params, use_tqdm=False)
    assert llm.stats().waiting == 0


def test_lists_that_were_changed_in_place_are_checked_again(llm: jengine.LLM) -> None:
    params = SamplingParams(max_tokens=4, stop_token_ids=[96], logit_bias={3: 1.0})
    params.stop_token_ids.append(-5)
    with pytest.raises(RequestError, match=r"stop_token_ids\[1\]=-5"):
        llm.generate(PROMPT, params, use_tqdm=False)
    params.stop_token_ids.pop()
    params.logit_bias[4] = float("nan")
    with pytest.raises(RequestError, match="logit_bias"):
        llm.generate(PROMPT, params, use_tqdm=False)


def test_later_changes_do_not_reach_a_request(llm: jengine.LLM) -> None:
    ending = told(PROMPT, 3)[2]
    params = SamplingParams(max_tokens=6, stop_token_ids=[96])
    outputs = llm.stream(PROMPT, params)
    next(outputs)
    params.stop_token_ids.append(ending)
    params.max_tokens = 2
    assert [output.outputs[0].token_ids for output in outputs][-1] == told(PROMPT, 6)


def test_a_copy_has_fields_of_its_own() -> None:
    params = SamplingParams(stop_token_ids=[7], bad_words=["a"], logit_bias={1: 2.0})
    copy = params.settled(output_kind=RequestOutputKind.FINAL_ONLY)
    assert copy == params.clone(output_kind=RequestOutputKind.FINAL_ONLY)
    assert params.output_kind is RequestOutputKind.CUMULATIVE
    for name in ("stop_token_ids", "bad_words", "logit_bias"):
        assert getattr(copy, name) == getattr(params, name)
        assert getattr(copy, name) is not getattr(params, name)


@dataclass(kw_only=True)
class Labelled(SamplingParams):
    label: str = ""

    def __post_init__(self) -> None:  # without the checks of the class above
        self.seen = True


def test_subclasses_keep_what_is_theirs(llm: jengine.LLM) -> None:
    params: Any = Labelled(label="x", max_tokens=3)
    copy: Any = params.settled()
    assert (type(copy), copy.label, copy.seen) == (Labelled, "x", True)
    assert tokens(llm.generate(PROMPT, params, use_tqdm=False)) == [told(PROMPT, 3)]
