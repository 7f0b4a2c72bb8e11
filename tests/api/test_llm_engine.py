"""LLMEngine: a caller that runs the steps gets what LLM gives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jengine import LLM, LLMEngine, RequestOutput, RequestOutputKind, SamplingParams
from jengine.errors import RequestError

PROMPTS = ("Once upon a time", "Long ago", "Once there was a king")
GREEDY = SamplingParams(temperature=0, max_tokens=6)


@pytest.fixture(scope="module")
def engine() -> Iterator[LLMEngine]:
    with LLMEngine("demo", max_num_seqs=4, max_model_len=256, enforce_eager=True) as engine:
        yield engine


def run(engine: LLMEngine) -> list[RequestOutput]:
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs


def test_outputs_are_those_of_an_llm(engine: LLMEngine) -> None:
    for number, prompt in enumerate(PROMPTS):
        assert engine.add_request(f"r{number}", prompt, GREEDY) == f"r{number}"
    assert engine.get_num_unfinished_requests() == len(PROMPTS)
    grown = run(engine)
    ends = {one.request_id: one.outputs[0].text for one in grown if one.finished}
    llm = LLM.over(engine.engine)
    wanted = [one.outputs[0].text for one in llm.generate(list(PROMPTS), GREEDY)]
    assert [ends[f"r{number}"] for number in range(len(PROMPTS))] == wanted
    assert len(grown) > len(PROMPTS) and engine.step() == []


def test_deltas_are_the_parts_of_an_answer(engine: LLMEngine) -> None:
    params = SamplingParams(temperature=0, max_tokens=6, output_kind=RequestOutputKind.DELTA)
    engine.add_request("parts", PROMPTS[0], params)
    engine.add_request("whole", PROMPTS[0], GREEDY)
    outputs = run(engine)
    parts = [one.outputs[0].text for one in outputs if one.request_id == "parts"]
    assert "".join(parts) == next(
        one.outputs[0].text for one in outputs if one.request_id == "whole" and one.finished
    )


def test_an_aborted_request_returns_nothing_more(engine: LLMEngine) -> None:
    engine.add_request("ends", PROMPTS[0], SamplingParams(temperature=0, max_tokens=100))
    engine.add_request("stays", PROMPTS[1], GREEDY)
    engine.step()
    engine.abort_request(["ends", "unknown"])
    assert {one.request_id for one in run(engine)} == {"stays"}
    assert engine.stats().running == 0


def test_a_wrong_request_is_not_queued(engine: LLMEngine) -> None:
    with pytest.raises(RequestError, match="expected SamplingParams"):
        engine.add_request("wrong", PROMPTS[0], 1)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="prompt"):
        engine.add_request("long", [5] * 300, GREEDY)
    engine.add_request("twice", PROMPTS[0], GREEDY)
    with pytest.raises(RequestError, match="is being answered already"):
        engine.add_request("twice", PROMPTS[0], GREEDY)
    assert [one.request_id for one in run(engine) if one.finished] == ["twice"]


def test_the_error_of_one_request_is_its_own(engine: LLMEngine) -> None:
    engine.add_request("fails", PROMPTS[0], GREEDY)
    engine.add_request("stays", PROMPTS[1], GREEDY)
    engine._open["fails"].fail(RequestError("by hand."))
    engine._batch.arrived.append(engine._open["fails"])
    with pytest.raises(RequestError, match="by hand"):
        engine.step()
    assert {one.request_id for one in run(engine)} == {"stays"}
