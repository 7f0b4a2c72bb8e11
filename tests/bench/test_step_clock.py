"""The clock divides scripted runs whose every second is known."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from jengine.bench.step_clock import StepClock, TimedExecutor, printed
from jengine.config import CacheConfig, CacheGroup, CacheSpec, ScheduleConfig
from jengine.engine.core import EngineCore
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.outputs import StepOutput
from jengine.plan import Plan, RowSampling
from jengine.request import WireRequest
from jengine.scheduler.scheduler import Scheduler
from tests.executor.scripted import ScriptedExecutor, scripted_tokens


@dataclass
class World:
    """A time that moves only when somebody works, and a device that runs steps one by one."""

    time: float = 0.0
    free_at: float = 0.0  # when the device has run all it was given
    busy: float = 0.0
    length: float = 5.0  # of a step
    stages: int = 1
    queued: list[Step] = field(default_factory=list)

    def now(self) -> float:
        return self.time

    def work(self, seconds: float) -> None:
        self.time += seconds

    def submit(self) -> Step:
        """Packing takes 1 s, and the step is queued at its end."""
        self.work(1.0)
        return self.queue()

    def queue(self) -> Step:
        self.free_at = max(self.free_at, self.time) + self.length
        self.busy += self.length
        self.queued.append(Step(self))
        if len(self.queued) >= self.stages:
            self.queued[len(self.queued) - self.stages].ends = self.free_at
        return self.queued[-1]


@dataclass
class Step:
    world: World
    ends: float | None = None  # None: it has not left the last stage

    @property
    def has_left(self) -> bool:
        return self.ends is not None

    @property
    def ready(self) -> bool:
        return self.ends is None or self.world.time >= self.ends

    def result(self) -> StepOutput:
        while self.ends is None:
            self.world.queue()
        self.world.time = max(self.world.time, self.ends)
        return StepOutput(np.array([[1]], np.int32))


def core_of(executor: ScriptedExecutor, cache: CacheConfig) -> EngineCore:
    return EngineCore(
        Scheduler(ScheduleConfig(4, 64, 64), CacheCoordinator(cache)), executor, depth=1
    )


@pytest.fixture
def core() -> EngineCore:
    cache = CacheConfig((CacheGroup(CacheSpec("full", 1, 8), (0,)),), 16, (32,))
    return core_of(ScriptedExecutor(cache, 100), cache)


def test_one_step_at_a_time(core: EngineCore) -> None:
    """Pack 1, wait 5, work 2 on the host: the device idles while the host packs and works."""
    world = World()
    clock = StepClock(world.now)
    with clock.running(core):
        for _ in range(3):
            clock.waited(clock.submitted(world.submit))
            world.work(2.0)
    found = clock.as_dict()
    assert found["steps"] == 3 and found["wall_s"] == 24
    assert found["packing_s"] == 3 and found["waiting_s"] == 15 and found["host_s"] == 9
    # While a step is packed, the time at which it reached the device is not known.
    assert found["idle_at_least_s"] == 6 and found["idle_at_most_s"] == 9
    assert found["idle_at_most_s"] == found["wall_s"] - world.busy


@pytest.mark.parametrize("host", [0.5, 3.0, 9.0])
def test_overlap(core: EngineCore, host: float) -> None:
    """One step is queued while another is read; what idles lies between the two figures."""
    world = World()
    clock = StepClock(world.now)
    with clock.running(core):
        before = clock.submitted(world.submit)
        for _ in range(5):
            queued = clock.submitted(world.submit)
            clock.waited(before)
            world.work(host)
            before = queued
        clock.waited(before)
    found = clock.as_dict()
    idle = found["wall_s"] - world.busy
    assert found["idle_at_least_s"] <= idle <= found["idle_at_most_s"]
    assert found["steps"] == 6 and found["packing_s"] == 6
    assert found["host_s"] == pytest.approx(6 + 5 * host)
    if host < 4:  # the device always has a step, but for the first second
        assert found["idle_at_most_s"] == 1
    else:  # the step that was queued ends while the host works
        assert found["idle_at_most_s"] - found["idle_at_least_s"] < found["wall_s"]
        assert found["idle_at_most_s"] >= 5 * (host - 5)


def test_stages_hand_on(core: EngineCore) -> None:
    """A plan that has not left tells nothing; the newest that has left does."""
    world = World(stages=2)
    clock = StepClock(world.now)
    with clock.running(core):
        first, second = clock.submitted(world.submit), clock.submitted(world.submit)
        assert first.has_left and not second.has_left
        clock.waited(first)
        world.work(3.0)  # the first has run; the second's last stage is not queued yet
        clock.waited(second)
    assert clock.idle_at_least == 3.0
    assert clock.waiting == 10 - 1 + 5


def test_runs_add_up_and_what_lies_between_does_not(core: EngineCore) -> None:
    world = World()
    clock = StepClock(world.now)
    for _ in range(2):
        with clock.running(core):
            clock.waited(clock.submitted(world.submit))
        world.work(100.0)
    assert clock.wall == 12 and clock.steps == 2 and clock.idle_at_most == 2


def test_the_core_runs_the_same_with_the_clock(core: EngineCore) -> None:
    executor, clock = core.executor, StepClock()
    prompt = list(range(7))
    core.add(
        WireRequest(request_id="a", prompt_token_ids=prompt, sampling=RowSampling(), max_tokens=6)
    )
    tokens: list[int] = []
    with clock.running(core):
        assert isinstance(core.executor, TimedExecutor)
        while core.has_work:
            tokens += [token for delta in core.step() for token in delta.token_ids]
    assert core.executor is executor, "the clock is gone"
    assert tokens == scripted_tokens(prompt, 6, 100)
    assert clock.steps == 6
    assert 0 < clock.packing < clock.wall and clock.waiting > 0
    assert "6 steps" in printed(clock.as_dict())


def test_an_error_takes_the_clock_away(core: EngineCore) -> None:
    executor = core.executor
    with pytest.raises(ZeroDivisionError), StepClock().running(core):
        raise ZeroDivisionError
    assert core.executor is executor


def test_the_executor_is_reached_through_the_clock() -> None:
    class Other:
        def submit(self, plan: Plan) -> Step:
            raise NotImplementedError

        def update_weights(self, leaves: object) -> None:
            called.append(("weights", leaves))

        def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
            return [method.encode() + arguments]

        def health(self) -> list[object]:
            return ["well"]

        def shutdown(self) -> None:
            called.append(("shutdown", None))

    called: list[tuple[str, object]] = []
    timed = TimedExecutor(Other(), StepClock())
    timed.update_weights(7)
    assert timed.call_workers("memory", b"x") == [b"memoryx"] and timed.health() == ["well"]
    timed.shutdown()
    assert called == [("weights", 7), ("shutdown", None)]
