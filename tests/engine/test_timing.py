"""The times of requests as their readers see them, and what the front's statistics count."""

from __future__ import annotations

import pytest

from jengine import RequestOutputKind, SamplingParams
from jengine.engine.answer import Answer
from jengine.engine.session import Session
from jengine.engine.timing import Arrival
from jengine.metrics.front_stats import EngineHistograms
from jengine.outputs import RequestOutput
from tests.engine.scripted import script_of, scripted_engine

GREEDY = SamplingParams(temperature=0, max_tokens=6)


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


def stats(session: Session) -> EngineHistograms:
    return session.stats.of(0)


def observed(session: Session, name: str) -> int:
    return sum(stats(session).histograms[name].counts)


def test_metrics_have_vllms_fields_in_the_order_of_events() -> None:
    engine = scripted_engine()
    script_of(engine).step_seconds = 0.002
    answer = engine.session.submit([1, 2, 3], GREEDY)
    run(engine.session)
    metrics = final(answer).metrics
    assert 0 < metrics.queued_ts <= metrics.scheduled_ts < metrics.first_token_ts
    assert metrics.first_token_ts < metrics.last_token_ts
    assert metrics.first_token_latency == metrics.time_to_first_token
    assert metrics.num_generation_tokens == 6 and metrics.num_preemptions == 0
    assert metrics.arrival_time > 1.7e9, "on the wall clock"
    assert not metrics.is_corrupted
    assert metrics.finished is not None and metrics.time_to_first_token is not None
    assert metrics.time_to_first_token < metrics.finished
    # Five steps after the first token; the script takes 2 ms for each.
    assert metrics.last_token_ts - metrics.first_token_ts > 0.008


def test_a_stream_knows_when_its_first_token_came(session: Session) -> None:
    answer = session.submit([1, 2], GREEDY.clone(output_kind=RequestOutputKind.DELTA))
    while (output := answer.take()) is None:
        session.step()
    assert output.metrics.queued_ts > 0 and output.metrics.first_token_ts > 0
    assert output.metrics.num_generation_tokens == 1


def test_every_finished_request_is_observed_once(session: Session) -> None:
    session.submit([1, 2, 3], GREEDY)
    session.submit([4, 5], GREEDY.clone(n=3, temperature=1.0))
    run(session)
    assert stats(session).ended == {"stop": 0, "length": 4, "abort": 0, "error": 0, "repetition": 0}
    assert observed(session, "e2e_request_latency_seconds") == 4
    assert observed(session, "time_to_first_token_seconds") == 4
    assert observed(session, "inter_token_latency_seconds") == 4 * 5
    assert observed(session, "request_params_n") == 2
    assert stats(session).histograms["request_params_n"].total == 1 + 3
    assert stats(session).histograms["request_generation_tokens"].total == 24
    assert stats(session).histograms["request_prompt_tokens"].total == 3 + 3 * 2
    assert observed(session, "request_queue_time_seconds") == 4


def test_a_discarded_request_counts_as_aborted(session: Session) -> None:
    answer = session.submit([1, 2, 3], GREEDY)
    session.step()
    session.discard(answer)
    run(session)
    assert session.open_answers == []
    assert stats(session).ended["abort"] == 1
    assert observed(session, "e2e_request_latency_seconds") == 1


def test_an_aborted_and_a_failed_request_are_counted_by_reason(session: Session) -> None:
    session.submit([1, 2, 3], GREEDY, request_id="mine")
    session.step()
    session.abort("mine")
    run(session)
    session.submit([1, 2, 3], GREEDY)
    session.fail_all(RuntimeError("broken"))
    assert stats(session).ended["abort"] == 1 and stats(session).ended["error"] == 1


def test_waiting_before_submission_counts_as_latency(session: Session) -> None:
    answer = session.submit([1, 2, 3], GREEDY, arrival=Arrival(1.0))
    run(session)
    metrics = final(answer).metrics
    assert metrics.time_to_first_token is not None
    assert metrics.time_to_first_token > metrics.first_token_ts - 1.5
