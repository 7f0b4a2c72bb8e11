"""The heart, and the client's queue, which keeps outside callers away while a plan is made."""

from __future__ import annotations

import gc
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from jengine.config import CacheConfig, ScheduleConfig
from jengine.engine.core import EngineCore
from jengine.engine.in_process import InProcessClient
from jengine.errors import RequestError
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.outputs import TokenDelta
from jengine.scheduler.plan_builder import PlanBuilder
from jengine.scheduler.scheduler import Scheduler
from tests.executor.scripted import ScriptedExecutor
from tests.kvcache.cache_cases import FULL
from tests.scheduler.scheduler_loop import VOCAB, make_wire, truth

CACHE = CacheConfig((FULL,), 4, (65,))


@pytest.fixture
def core() -> EngineCore:
    scheduler = Scheduler(ScheduleConfig(8, 32, 64, prefill_tile=1), CacheCoordinator(CACHE))
    return EngineCore(scheduler, ScriptedExecutor(CACHE, VOCAB), depth=1)


def drain(core: EngineCore) -> list[TokenDelta]:
    deltas = []
    while core.has_work:
        deltas += core.step()
    return deltas


def tokens_of(deltas: list[TokenDelta], name: str) -> list[int]:
    return [token for delta in deltas if delta.request_id == name for token in delta.token_ids]


def ends(deltas: list[TokenDelta]) -> dict[str, str]:
    return {delta.request_id: delta.finish_reason for delta in deltas if delta.finish_reason}


class Reader:
    """The reader of a stream, who forgets it within a reference cycle."""

    def __init__(self, client: InProcessClient, name: str) -> None:
        self.stream = self.read(client, name)
        next(self.stream)

    def read(self, client: InProcessClient, name: str) -> Iterator[None]:
        try:
            while True:
                yield
        finally:
            client.abort(name)


@pytest.mark.parametrize("steps", range(4))
def test_a_garbage_collection_inside_schedule_changes_no_plan(
    core: EngineCore, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """It may close an abandoned stream, whose request is already in the plan being built."""
    client = InProcessClient(core)
    wires = [make_wire(5 + 2 * i, name, max_tokens=12) for i, name in enumerate("abc")]
    for wire in wires:
        client.add(wire)
    deltas = [delta for _ in range(steps) for delta in client.outputs()]
    seal = PlanBuilder.seal

    def collecting(*arguments):
        gc.collect()
        return seal(*arguments)

    gc.freeze()  # the collection looks at what this test makes, not at all modules
    gc.disable()  # only inside `seal`
    try:
        Reader(client, "b")
        with monkeypatch.context() as patch:
            patch.setattr(PlanBuilder, "seal", collecting)
            deltas += client.outputs()
    finally:
        gc.enable()
        gc.unfreeze()
    assert "b" not in ends(deltas), "the plan was made with it"
    while client.has_work:
        deltas += client.outputs()
    assert ends(deltas) == {"a": "length", "b": "abort", "c": "length"}
    for wire in (wires[0], wires[2]):
        assert tokens_of(deltas, wire.request_id) == truth(wire)[0]
    given = tokens_of(deltas, "b")
    assert given == truth(wires[1])[0][: len(given)]


def test_requests_and_aborts_between_steps_take_effect_at_once(core: EngineCore) -> None:
    core.add(make_wire(5, "a", max_tokens=9))
    assert core.has_work and core.counts().waiting == 1
    core.step()
    assert not core.reset_prefix_cache()
    ended = core.abort("a")
    assert ended is not None and ended.finish_reason == "abort"
    assert core.reset_prefix_cache() and core.counts().running == 0 and not core.has_work
    assert core.abort("a") is None and core.abort("unknown") is None
    wire = make_wire(6, "b")
    core.add(wire)
    assert tokens_of(drain(core), "b") == truth(wire)[0]


def test_what_cannot_run_is_refused(core: EngineCore) -> None:
    with pytest.raises(RequestError, match="has 64 tokens"):
        core.add(make_wire(64, "long"))
    core.add(make_wire(5, "a"))
    for _ in range(2):  # while it waits, then while it runs
        with pytest.raises(RequestError, match="being answered already"):
            core.add(make_wire(5, "a"))
        core.step()
    core.abort("a")
    core.add(make_wire(5, "a"))
    assert ends(drain(core)) == {"a": "length"}


def test_a_step_may_leave_the_one_before_it_unread(core: EngineCore) -> None:
    wire = make_wire(5, "a", max_tokens=9)
    core.add(wire)
    due = []
    for _ in range(3):
        assert core.step(read=False) == []
        due.append((len(core.in_flight), core.is_due))
    assert due == [(1, False), (2, True), (2, True)]
    assert tokens_of(drain(core), "a") == truth(wire)[0]


class Alarm(BaseException):
    """What a signal handler of the user's may raise in the middle of a step."""


def test_what_a_signal_handler_raises_ends_requests_and_not_the_engine(
    core: EngineCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    core.add(make_wire(5, "cut", max_tokens=12))
    deltas = core.step()
    with monkeypatch.context() as patch:

        def interrupted(*_arguments: object) -> None:
            raise Alarm

        patch.setattr(core.executor, "submit", interrupted)
        with pytest.raises(Alarm):
            core.step()
    assert ends(deltas + drain(core)) == {"cut": "abort"}
    wire = make_wire(7, "next", max_tokens=6)
    core.add(wire)
    assert tokens_of(drain(core), "next") == truth(wire)[0]


def test_the_tour_quotes_the_heart() -> None:
    tour = (Path(inspect.getfile(EngineCore)).parent.parent / "README.md").read_text()
    quoted = tour.split("The heart, in full")[1].split("```python\n")[1].split("```")[0]
    source = textwrap.dedent(inspect.getsource(EngineCore.step))
    assert textwrap.indent(quoted, "        ") in source
    code = [line for line in source.splitlines() if line.strip() and '"""' not in line]
    assert len(code) <= 15


def test_a_step_is_queued_while_tokens_become_text(core: EngineCore) -> None:
    core.add(make_wire(5, "a", max_tokens=2))
    deltas = core.step()
    assert core.in_flight and not core.run_ahead(), "one is in flight already"
    assert len(core.in_flight) == 1
    while core.in_flight:
        deltas += core.step()
    core.add(make_wire(5, "b", max_tokens=2))
    deltas += core.run_ahead()
    assert len(core.in_flight) == 1, "queued, and not read"
    assert not tokens_of(deltas, "b")
    deltas += drain(core)
    assert len(tokens_of(deltas, "b")) == 2
    core.depth = 0
    core.add(make_wire(5, "c", max_tokens=2))
    assert not core.run_ahead() and not core.in_flight, "no overlap"
    drain(core)
