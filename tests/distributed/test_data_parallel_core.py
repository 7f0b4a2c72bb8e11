"""Several replicas as one core, without devices: answers, placement, ends, weights, failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from jengine.config import CacheConfig, ScheduleConfig
from jengine.distributed.data_parallel import DataParallelCore
from jengine.engine.core import EngineCore
from jengine.errors import EngineDead, RequestError, UnexpectedCompile
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.kvcache.hashing import block_hashes
from jengine.outputs import StepOutput, TokenDelta
from jengine.plan import Plan
from jengine.request import WireRequest
from jengine.scheduler.scheduler import Scheduler
from tests.executor.scripted import ScriptedExecutor, ScriptedResult
from tests.kvcache.cache_cases import FULL
from tests.scheduler.scheduler_loop import VOCAB, make_wire, truth

BLOCK = 4
CACHE = CacheConfig((FULL,), BLOCK, (41,), True)
SCHEDULE = ScheduleConfig(
    max_num_seqs=4, max_num_batched_tokens=32, max_model_len=64, prefill_tile=1
)


class Watched:
    """A scripted executor that writes down when it is asked for what, and can be made to fail."""

    def __init__(self, number: int, events: list[tuple[str, int]]) -> None:
        self.inner = ScriptedExecutor(CACHE, VOCAB)
        self.number = number
        self.events = events
        self.weights: Any = None
        self.problem: BaseException | None = None
        self.is_ready: Callable[[], bool] = lambda: True

    def submit(self, plan: Plan) -> Reading:
        self.events.append(("submit", self.number))
        if isinstance(self.problem, UnexpectedCompile):
            problem, self.problem = self.problem, None
            self.inner._update_rows(plan)
            raise problem
        return Reading(self, self.inner.submit(plan))

    def update_weights(self, leaves: Any) -> None:
        self.weights = leaves

    def shutdown(self) -> None:
        self.events.append(("shutdown", self.number))


class Reading:
    def __init__(self, executor: Watched, result: ScriptedResult) -> None:
        self.executor = executor
        self.scripted = result

    @property
    def ready(self) -> bool:
        return self.executor.is_ready()

    def result(self) -> StepOutput:
        self.executor.events.append(("read", self.executor.number))
        if self.executor.problem is not None:
            problem, self.executor.problem = self.executor.problem, None
            raise problem
        return self.scripted.result()


def split(leaves: Any) -> list[Any]:
    return [(leaves, replica) for replica in range(3)]


class Replicas:
    """Three replicas, and what their requests were told."""

    def __init__(self, depth: int = 1, in_turn: bool = False) -> None:
        self.events: list[tuple[str, int]] = []
        self.executors = [Watched(number, self.events) for number in range(3)]
        cores = [
            EngineCore(Scheduler(SCHEDULE, CacheCoordinator(CACHE), depth=depth), executor, depth)
            for executor in self.executors
        ]
        names = [f"replica {number}" for number in range(3)]
        self.core = DataParallelCore(cores, names, split, in_turn)
        self.tokens: dict[str, list[int]] = {}
        self.finals: dict[str, TokenDelta] = {}

    def add(self, *wires: WireRequest) -> None:
        for wire in wires:
            self.core.add(wire)
            self.tokens[wire.request_id] = []

    def abort(self, name: str) -> None:
        ended = self.core.abort(name)
        self.take([] if ended is None else [ended])

    def take(self, deltas: list[TokenDelta]) -> None:
        for one in deltas:
            assert one.request_id not in self.finals, "a delta after the final one"
            self.tokens[one.request_id] += one.token_ids
            if one.finish_reason is not None:
                self.finals[one.request_id] = one

    def drain(self) -> None:
        for _ in range(2000):
            if not self.core.has_work:
                break
            self.take(self.core.step())
        else:
            raise AssertionError("the requests do not finish")
        assert self.core.router.loads == [0, 0, 0]

    def assert_truth(self, *wires: WireRequest) -> None:
        for wire in wires:
            name = wire.request_id
            assert (self.tokens[name], self.finals[name].finish_reason) == truth(wire)

    def where(self, name: str) -> int | None:
        return self.core.router.replica_of(name)


@pytest.mark.parametrize(("depth", "in_turn"), [(0, True), (0, False), (1, False), (2, False)])
def test_answers_are_the_same_wherever_they_come_from(depth: int, in_turn: bool) -> None:
    replicas = Replicas(depth, in_turn)
    wires = [make_wire(3 + 2 * i, f"r{i}", max_tokens=9 + i) for i in range(17)]
    replicas.add(*wires)
    assert {replicas.where(wire.request_id) for wire in wires} == {0, 1, 2}
    counts = replicas.core.counts()
    assert (counts.waiting, len(counts.replicas)) == (17, 3)
    replicas.drain()
    replicas.assert_truth(*wires)


def test_every_replica_has_its_step_before_one_is_waited_for() -> None:
    replicas = Replicas(depth=0)
    replicas.add(*(make_wire(5, name) for name in "abc"))
    replicas.core.step()
    kinds = [kind for kind, _ in replicas.events]
    assert kinds == ["submit"] * 3 + ["read"] * 3
    alone = Replicas(depth=0, in_turn=True)
    alone.add(*(make_wire(5, name) for name in "abc"))
    alone.core.step()
    assert alone.events == [(kind, i) for i in range(3) for kind in ("submit", "read")]


def test_a_replica_that_takes_long_does_not_hold_up_the_others() -> None:
    replicas = Replicas()
    replicas.add(*(make_wire(5, name, max_tokens=12) for name in "abc"))
    replicas.executors[1].is_ready = lambda: False
    for _ in range(60):
        replicas.take(replicas.core.step())
        if len(replicas.finals) == 2:
            break
    assert sorted(replicas.finals) == ["a", "c"] and replicas.tokens["b"] == []
    # Its steps are queued, but no more of them than may be.
    assert replicas.events.count(("submit", 1)) == 2
    replicas.take(replicas.core.step())  # no other replica has work: it is waited for
    assert len(replicas.tokens["b"]) == 1
    replicas.drain()
    assert replicas.finals["b"].finish_reason == "length"


def test_somebody_is_waited_for_when_nobody_is_ready() -> None:
    replicas = Replicas()
    replicas.add(*(make_wire(5, name, max_tokens=12) for name in "abc"))
    glances = iter([False] * 12 + [True] * 1000)
    for executor in replicas.executors:
        executor.is_ready = lambda: next(glances)
    assert replicas.core.step() == [] and ("read", 0) not in replicas.events
    assert len(replicas.core.step()) > 0, "no replica can queue more, so the first is waited for"
    assert next(glances)


def test_a_prompt_goes_where_its_beginning_is() -> None:
    replicas = Replicas()
    texts = [list(range(first, first + 24)) for first in (1, 31, 61)]
    replicas.add(*(make_wire(text, f"first{i}") for i, text in enumerate(texts)))
    homes = [replicas.where(f"first{i}") for i in range(3)]
    assert sorted(homes) == [0, 1, 2]
    replicas.drain()
    for i in (2, 0, 1):
        replicas.add(make_wire([*texts[i], 9, 9], f"again{i}"))
        assert replicas.where(f"again{i}") == homes[i]
    replicas.drain()
    assert all(replicas.finals[f"again{i}"].num_cached_tokens == 24 for i in range(3))
    # Salted, or after new weights, the same text is another text.
    replicas.add(make_wire([*texts[2], 9], "salted", cache_salt="x"))
    assert replicas.where("salted") == 0 != homes[2]
    replicas.drain()
    assert replicas.core.update_weights("new") == 1
    replicas.add(make_wire([*texts[2], 9], "new weights"))
    assert replicas.where("new weights") == 0
    replicas.drain()
    assert replicas.finals["new weights"].num_cached_tokens == 0
    replicas.add(make_wire([*texts[2], 9], "aside", skip_reading_prefix_cache=True, priority=3))
    replicas.add(make_wire([*texts[2], 8], "tapped", taps=1))
    assert [replicas.where(name) for name in ("aside", "tapped")] == [0, 1]


def test_a_request_may_name_its_replica() -> None:
    replicas = Replicas()
    text = list(range(1, 25))
    replicas.add(make_wire(text, "first", replica=2), make_wire(text, "second", replica=1))
    assert (replicas.where("first"), replicas.where("second")) == (2, 1)
    replicas.drain()


def test_blocks_are_hashed_once_for_all_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Sequence[int]] = []

    def counted(parent: bytes, tokens: Sequence[int], size: int, extra: Any) -> list[bytes]:
        hashed.extend(list(tokens[at : at + size]) for at in range(0, len(tokens), size))
        return block_hashes(parent, tokens, size, extra)

    monkeypatch.setattr("jengine.kvcache.contents.block_hashes", counted)
    replicas = Replicas()
    wire = make_wire(21, "a", max_tokens=12)
    replicas.add(wire)
    assert len(hashed) == 5
    replicas.drain()
    replicas.assert_truth(wire)
    assert hashed == [[*wire.prompt_token_ids, *replicas.tokens["a"]][i : i + BLOCK]
                      for i in range(0, 32, BLOCK)]  # fmt: skip


def test_weights_change_in_every_replica_or_in_none() -> None:
    replicas = Replicas()
    assert replicas.core.update_weights("w") == replicas.core.weights_version == 1
    assert [executor.weights for executor in replicas.executors] == [("w", i) for i in range(3)]

    def broken(leaves: Any) -> list[Any]:
        raise ValueError("does not fit")

    replicas.core.split = broken
    with pytest.raises(ValueError, match="does not fit"):
        replicas.core.update_weights("other")
    assert replicas.core.weights_version == 1
    assert [executor.weights for executor in replicas.executors] == [("w", i) for i in range(3)]


def test_the_prefix_cache_is_forgotten_everywhere_or_nowhere() -> None:
    replicas = Replicas()
    text = list(range(20))
    replicas.add(make_wire(text, "a"))
    replicas.drain()
    replicas.add(make_wire(9, "b", max_tokens=30), make_wire(30, "c", max_tokens=30))
    replicas.take(replicas.core.step())
    assert not replicas.core.reset_prefix_cache()
    replicas.add(make_wire(text, "d"))
    replicas.drain()
    assert replicas.finals["d"].num_cached_tokens == 16
    assert replicas.core.reset_prefix_cache()
    replicas.add(make_wire(text, "e"))
    replicas.drain()
    assert replicas.finals["e"].num_cached_tokens == 0


def test_running_requests_can_be_made_to_give_up_their_blocks() -> None:
    replicas = Replicas()
    wires = [make_wire(9, name, max_tokens=12) for name in "abcd"]
    replicas.add(*wires)
    for _ in range(3):
        replicas.take(replicas.core.step())
    assert not replicas.core.reset_prefix_cache()
    assert replicas.core.reset_prefix_cache(reset_running_requests=True)
    counts = replicas.core.counts()
    assert (counts.running, counts.waiting, counts.cache_usage) == (0, 4, 0)
    replicas.drain()
    replicas.assert_truth(*wires)


def test_a_request_id_is_answered_once() -> None:
    replicas = Replicas()
    replicas.add(make_wire(5, "a"))
    with pytest.raises(RequestError, match="being answered already"):
        replicas.core.add(make_wire(6, "a"))
    with pytest.raises(RequestError, match="has 64 tokens"):
        replicas.core.add(make_wire(64, "long"))
    assert replicas.core.router.loads == [5, 0, 0]
    for name in ("nobody", "a", "a"):
        replicas.abort(name)
    replicas.drain()
    assert {name: one.finish_reason for name, one in replicas.finals.items()} == {"a": "abort"}


def test_a_replica_that_fails_ends_the_engine_and_is_named() -> None:
    replicas = Replicas()
    replicas.add(*(make_wire(5, name) for name in "abc"))
    replicas.core.step()
    replicas.executors[1].problem = ValueError("lost")
    with pytest.raises(EngineDead, match="replica 1: a step failed: ValueError: lost"):
        replicas.drain()
    for call in (replicas.core.step, lambda: replicas.core.add(make_wire(5, "d"))):
        with pytest.raises(EngineDead, match="has stopped") as caught:
            call()
        assert "replica 1" in str(caught.value.__cause__)
    replicas.core.shutdown()
    assert replicas.events[-3:] == [("shutdown", i) for i in range(3)]


def test_an_unexpected_compile_ends_the_requests_of_one_replica() -> None:
    replicas = Replicas()
    wires = [make_wire(5, name, max_tokens=8) for name in "abc"]
    replicas.add(*wires)
    replicas.take(replicas.core.step())
    replicas.executors[2].problem = UnexpectedCompile("strict")
    with pytest.raises(UnexpectedCompile):
        replicas.core.step()
    replicas.drain()
    replicas.assert_truth(*wires[:2])
    assert replicas.finals["c"].finish_reason == "abort"


def test_an_interrupt_while_reading_loses_nothing_that_was_read() -> None:
    replicas = Replicas(depth=0)
    wires = [make_wire(5, name, max_tokens=8) for name in "abc"]
    replicas.add(*wires)
    replicas.take(replicas.core.step())
    replicas.executors[1].problem = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        replicas.core.step()
    replicas.drain()
    replicas.assert_truth(wires[0], wires[2])
    assert replicas.finals["b"].finish_reason == "abort"


def test_after_shutdown_nothing_is_left() -> None:
    replicas = Replicas()
    replicas.add(make_wire(5, "a"))
    replicas.core.shutdown()
    assert not replicas.core.has_work
    with pytest.raises(EngineDead):
        replicas.core.add(make_wire(5, "b"))


class ReplicasMachine(RuleBasedStateMachine):
    """Requests come and go in any order; every answer is what any schedule must give."""

    @initialize(depth=st.integers(0, 2), in_turn=st.booleans(), slow=st.randoms())
    def begin(self, depth, in_turn, slow):
        self.replicas = Replicas(depth, in_turn)
        for executor in self.replicas.executors:
            executor.is_ready = lambda: slow.random() < 0.4
        self.wires: dict[str, WireRequest] = {}
        self.aborted: set[str] = set()

    @rule(
        prefix=st.sampled_from([[], list(range(12)), list(range(40, 60))]),
        rest=st.integers(1, 20),
        answer=st.integers(1, 20),
    )
    def add(self, prefix, rest, answer):
        name = str(len(self.wires))
        tail = [(7 * len(self.wires) + i) % VOCAB for i in range(rest)]
        self.wires[name] = make_wire([*prefix, *tail], name, max_tokens=answer)
        self.replicas.add(self.wires[name])

    @precondition(lambda self: self.replicas.core.has_work)
    @rule(count=st.integers(1, 5))
    def step(self, count):
        for _ in range(count):
            self.replicas.take(self.replicas.core.step())
        for core in self.replicas.core.replicas:
            core.scheduler.cache.check()

    @precondition(lambda self: self.wires)
    @rule(data=st.data())
    def abort(self, data):
        name = data.draw(st.sampled_from(sorted(self.wires)))
        if name not in self.replicas.finals:
            self.aborted.add(name)
        self.replicas.abort(name)

    @rule()
    def forget_prefixes(self):
        self.replicas.core.reset_prefix_cache()

    def teardown(self):
        if not hasattr(self, "replicas"):
            return
        self.replicas.drain()
        for name, wire in self.wires.items():
            if name in self.aborted:
                assert self.replicas.finals[name].finish_reason == "abort"
                assert (
                    self.replicas.tokens[name] == truth(wire)[0][: len(self.replicas.tokens[name])]
                )
            else:
                self.replicas.assert_truth(wire)


TestReplicas = ReplicasMachine.TestCase
TestReplicas.settings = settings(
    derandomize=True, deadline=None, max_examples=40, stateful_step_count=40
)


def test_replicas_that_step_together_are_launched_once_all_have_planned() -> None:
    loop = Replicas()
    launched: list[int] = []
    loop.core.launch = lambda: launched.append(loop.events.count(("read", 0)))
    loop.add(make_wire([1, 2, 3], "a"))
    loop.core.step()
    assert launched == [0], "before the first read"

    def fail() -> None:
        raise ValueError("no memory")

    loop.core.launch = fail
    with pytest.raises(EngineDead, match="a step of all replicas failed: ValueError: no memory"):
        loop.core.step()
    with pytest.raises(EngineDead):
        loop.core.check_alive()
