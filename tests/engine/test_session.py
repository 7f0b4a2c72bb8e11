"""Sessions: whose delta it is, what a discarded request leaves, and answers that are read late."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import jengine
from jengine import RequestOutputKind, SamplingParams
from jengine.engine.answer import Answer
from jengine.engine.session import Session
from jengine.engine.timing import Arrival
from jengine.errors import RequestError
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.outputs import RequestOutput
from tests.engine.scripted import scripted_engine, told

GREEDY = SamplingParams(temperature=0, max_tokens=6)
LONG = GREEDY.clone(max_tokens=400)


@pytest.fixture
def session() -> Session:
    return scripted_engine().session


def run(session: Session) -> None:
    while session.has_work:
        session.step()


def final(answer: Answer) -> RequestOutput:
    output = answer.take()
    assert output is not None and output.finished
    return output


def test_late_deltas_of_a_discarded_request_do_not_reach_one_of_the_same_id(
    session: Session,
) -> None:
    first = session.submit([1, 2, 3], LONG, request_id="same")
    for _ in range(3):
        session.step()
    session.receive()  # its tokens are on their way
    session.discard(first)
    second = session.submit([9, 8, 7], GREEDY, request_id="same")
    session.process()
    run(session)
    assert final(second).outputs[0].token_ids == told([9, 8, 7], 6)


def test_a_replica_that_is_not_there_is_refused(session: Session) -> None:
    with pytest.raises(RequestError, match=r"data_parallel_rank 1 is out of range \[0, 1\)"):
        session.submit([1, 2, 3], GREEDY, arrival=Arrival(1.0, replica=1))
    assert session.open_answers == []
    run(session)
    answer = session.submit([1, 2, 3], GREEDY, arrival=Arrival(1.0, replica=0))
    run(session)
    assert final(answer).outputs[0].token_ids == told([1, 2, 3], 6)


def test_an_id_in_use_is_refused_until_its_request_is_discarded(session: Session) -> None:
    first = session.submit([1, 2, 3], GREEDY, request_id="same")
    with pytest.raises(RequestError, match="'same' is being answered already"):
        session.submit([1, 2, 3], GREEDY, request_id="same")
    session.discard(first)
    again = session.submit([1, 2, 3], GREEDY, request_id="same")
    session.discard(first)  # once more, when the id belongs to another request
    assert session.open_answers == [again]
    run(session)
    assert final(again).outputs[0].token_ids == told([1, 2, 3], 6)
    assert session.open_answers == []


def test_an_answer_read_late_comes_as_one_output(session: Session) -> None:
    delta = LONG.clone(output_kind=RequestOutputKind.DELTA)
    whole = session.submit([1, 2], LONG)
    parts = session.submit([1, 2], delta)
    news = []
    while session.has_work:
        news += session.step()
    assert news.count(whole) == news.count(parts) == 1, "a reader is told once until it reads"
    for answer in (whole, parts):
        assert final(answer).outputs[0].token_ids == told([1, 2], 400)
        assert answer.take() is None


def test_deltas_read_now_and_then_hold_each_token_once(session: Session) -> None:
    params = SamplingParams(
        max_tokens=50, n=2, seed=3, logprobs=1, output_kind=RequestOutputKind.DELTA
    )
    answer = session.submit([4, 5], params)
    found: list[list[int]] = [[], []]
    tables = 0
    steps = 0
    while session.has_work:
        session.step()
        steps += 1
        output = answer.take() if steps % 7 == 0 or answer.finished else None
        for one in output.outputs if output else []:
            found[one.index] += one.token_ids
            tables += len(one.logprobs or ())
            assert [next(iter(table)) for table in one.logprobs or ()] == one.token_ids
    assert found == [told([4, 5], 50)] * 2 and tables == 100


def test_new_requests_wait_while_the_session_is_closed_to_them(session: Session) -> None:
    import threading

    entered: list[Answer] = []
    thread = threading.Thread(target=lambda: entered.append(session.submit([1, 2], GREEDY)))
    with session.closed_to_new():
        thread.start()
        thread.join(0.05)
        assert entered == []
    thread.join()
    assert len(entered) == 1


@pytest.mark.parametrize("where", ["find_prefix", "allocate", "publish"])
def test_a_stream_collected_in_the_middle_of_a_step_changes_no_plan(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cyclic collector may close an abandoned stream anywhere, also inside schedule()."""
    llm = jengine.LLM.over(scripted_engine())
    collected = turn = 0
    plain = getattr(CacheCoordinator, where)

    def collecting(*arguments: Any, **more: Any) -> Any:
        nonlocal collected
        if collected < turn + 1:
            collected += gc.collect() > 0
        return plain(*arguments, **more)

    gc.freeze()  # collections look at what this test makes, not at all modules
    gc.disable()
    try:
        for turn in range(4):
            cycle: list[Any] = [llm.stream([turn + 1, 2, 3], LONG)]
            cycle.append(cycle)
            for _ in range(turn):
                next(cycle[0])
            monkeypatch.setattr(CacheCoordinator, where, collecting)
            del cycle
            prompts = [[turn, 50, 60], [turn, 70]]
            outputs = llm.generate(prompts, GREEDY.clone(max_tokens=40), use_tqdm=False)
            assert [one.outputs[0].token_ids for one in outputs] == [told(p, 40) for p in prompts]
            assert collected == turn + 1, "nothing was collected inside a step"
            monkeypatch.undo()
    finally:
        gc.enable()
        gc.unfreeze()
    stats = llm.stats()
    assert stats.running == stats.waiting == 0 and stats.cache_usage == 0
    assert llm.engine.session.open_answers == []
