"""The in-process client: what reaches the core, when, and on which thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Hashable
from functools import partial

import pytest

from jengine.engine.in_process import Bell
from jengine.engine.questions import (
    AskHealth,
    AskStats,
    CallWorkers,
    Pause,
    Probe,
    ResetPrefixCache,
    Settle,
)
from jengine.errors import EngineDead, RequestError
from jengine.outputs import TokenDelta
from jengine.plan import RowSampling
from jengine.request import Request, WireRequest
from jengine.scheduler.gates import Wake
from tests.engine.scripted import script_of, scripted_engine, told

PROMPT = [5, 6, 7]


def wire(name: str, max_tokens: int = 5) -> WireRequest:
    return WireRequest(
        request_id=name, prompt_token_ids=PROMPT, sampling=RowSampling(), max_tokens=max_tokens
    )


def test_adds_and_aborts_reach_the_scheduler_at_the_next_step() -> None:
    client = scripted_engine().in_process
    scheduler = client.core.scheduler  # type: ignore[attr-defined]
    client.add(wire("kept"))
    client.add(wire("left"))
    client.abort("left")
    client.abort("unknown")
    assert client.has_work and not scheduler.has_unfinished
    deltas: list[TokenDelta] = []
    while client.has_work:
        deltas += client.outputs()
    by_name = {name: [one for one in deltas if one.request_id == name] for name in ("kept", "left")}
    assert [token for one in by_name["kept"] for token in one.token_ids] == told(PROMPT, 5)
    assert [one.finish_reason for one in by_name["left"]] == ["abort"]


def test_a_question_is_answered_with_what_is_queued_taken_up() -> None:
    client = scripted_engine().client
    client.add(wire("a"))
    assert client.ask(AskStats()).waiting == 1
    client.abort("a")
    assert client.ask(AskStats()).waiting == 0
    (ended,) = client.outputs()
    assert (ended.request_id, ended.finish_reason) == ("a", "abort")


def test_what_can_never_run_is_refused_at_once_and_what_clashes_later() -> None:
    client = scripted_engine().client
    with pytest.raises(RequestError, match="expected at least 1"):
        client.add(wire("a", max_tokens=0))
    assert not client.has_work
    client.add(wire("a", max_tokens=2))
    client.add(wire("a"))
    deltas = client.outputs()
    (refused,) = [one for one in deltas if one.finish_reason == "error"]
    assert refused.refused and "being answered already" in str(refused.message)
    while client.has_work:
        deltas += client.outputs()
    assert [token for one in deltas for token in one.token_ids] == told(PROMPT, 2)


class Closed:
    """Requests wait for "it", which is never told unless the test does."""

    is_open = False

    def __init__(self, wake: Wake) -> None:
        self.wake = wake

    def awaited(self, request: Request) -> Hashable | None:
        return None if self.is_open else "it"


def test_an_engine_of_parked_requests_rests_until_something_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One step for each event, and none besides."""
    monkeypatch.setattr("jengine.scheduler.scheduler.LONGEST_REST", 60.0)
    gates: list[Closed] = []
    client = scripted_engine(gates=[lambda wake: gates.append(Closed(wake)) or gates[0]]).client
    rests: queue.SimpleQueue[None] = queue.SimpleQueue()
    wait = Bell.wait
    monkeypatch.setattr(Bell, "wait", lambda bell, most: rests.put(None) or wait(bell, most))
    steps: list[list[TokenDelta]] = []

    def run() -> None:
        while client.has_work:
            steps.append(client.outputs())

    client.add(wire("a"))
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    rests.get(timeout=60)
    assert client.ask(AskStats()).deferred == 1, "questions are answered meanwhile"
    events = [
        partial(client.add, wire("b")),
        partial(gates[0].wake, "it"),
        partial(client.ask, Pause()),
    ]
    for happens in events:
        happens()
        rests.get(timeout=60)
    assert (len(steps), rests.empty()) == (len(events), True)
    client.abort("a")  # whose end is news, and so no rest follows
    rests.get(timeout=60)
    assert [[one.request_id for one in step] for step in steps] == [*[[]] * 4, ["a"]]
    gates[0].is_open = True
    gates[0].wake("it")
    thread.join(60)
    assert not thread.is_alive() and steps[-1][-1].finish_reason == "length"
    assert [token for step in steps[5:] for one in step for token in one.token_ids] == told(
        PROMPT, 5
    )


class Alarm(BaseException):
    """An exception that a user's signal handler may raise in the middle of a step."""


def test_a_refusal_outlives_a_step_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = scripted_engine()
    client = engine.client
    client.add(wire("a"))
    client.add(wire("a"))

    def interrupted(*_arguments: object) -> None:
        raise Alarm

    with monkeypatch.context() as patch:
        patch.setattr(script_of(engine), "submit", interrupted)
        with pytest.raises(Alarm):
            client.outputs()
    reasons = []
    while client.has_work:
        reasons += [one.finish_reason for one in client.outputs()]
    assert sorted(map(str, reasons)) == ["abort", "error"]


def test_questions_do_not_wait_until_the_engine_is_idle() -> None:
    engine = scripted_engine()
    client, script = engine.client, script_of(engine)
    script.step_seconds = 0.002
    client.add(wire("long", max_tokens=900))

    def run() -> None:
        while client.has_work:
            client.outputs()

    stepping = threading.Thread(target=run)
    stepping.start()
    while script.steps < 5:
        time.sleep(0.001)
    for _ in range(10):
        before = script.steps
        assert client.ask(AskStats()).running == 1
        assert script.steps - before <= 200, "threads that step must let others in"
    client.abort("long")
    stepping.join()


def test_the_state_of_a_core_never_waits_for_its_step() -> None:
    engine = scripted_engine()
    client, script = engine.client, script_of(engine)
    assert client.state().steps == 0 and client.state().stepping == 0.0
    script.goes_on.clear()
    client.add(wire("a", max_tokens=1))
    stepping = threading.Thread(target=client.outputs)
    stepping.start()
    while client.state().stepping < 0.05:
        time.sleep(0.001)
    assert client.state().counts.running == 0, "as it was before the step"
    assert stepping.is_alive()
    script.goes_on.set()
    stepping.join()
    while client.has_work:
        client.outputs()
    state = client.state()
    assert state.steps >= 2 and state.counts.generation_tokens == 1 and state.age < 60


def test_everything_refuses_to_run_in_a_forked_child(monkeypatch: pytest.MonkeyPatch) -> None:
    client = scripted_engine().client
    monkeypatch.setattr("os.getpid", lambda: -1)
    calls = (
        lambda: client.add(wire("a")),
        client.outputs,
        partial(client.ask, AskStats()),
        partial(client.ask, Settle()),
        partial(client.ask, Probe()),
        partial(client.ask, AskHealth()),
        partial(client.ask, ResetPrefixCache()),
        partial(client.ask, CallWorkers("programs", b"\x80")),
    )
    for call in calls:
        with pytest.raises(EngineDead, match="'spawn'"):
            call()
    client.shutdown()
    monkeypatch.undo()
    client.add(wire("a"))
    assert client.ask(AskStats()).waiting == 1, "a child does not shut its parent's engine down"
