"""With two steps in flight the dispatch of a step's second program costs a device no time."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from jengine.config import CacheConfig, ScheduleConfig
from jengine.engine.core import EngineCore
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.outputs import StepOutput
from jengine.plan import Plan
from jengine.scheduler.scheduler import Scheduler
from tests.executor.scripted import ScriptedExecutor, ScriptedResult
from tests.kvcache.cache_cases import FULL
from tests.scheduler.scheduler_loop import VOCAB, make_wire, truth

ROWS, TOKENS = 1024, 4
CACHE = CacheConfig((FULL,), 4, (2 * ROWS + 1,))
# Of a virtual clock: a plan until it is packed, a dispatch, and the two programs of a step.
PACK, DISPATCH, FORWARD, SAMPLE = 4.0, 1.0, 9.0, 2.0


class TimedStep(NamedTuple):
    """A step of the script, whose output is there at a time."""

    step: ScriptedResult
    ends: float
    wait: Callable[[float], None]
    has_left = True

    @property
    def ready(self) -> bool:
        return True

    def result(self) -> StepOutput:
        self.wait(self.ends)
        return self.step.result()


class TimedDevice(ScriptedExecutor):
    """Runs the programs of steps one by one, each no earlier than it was dispatched."""

    def __init__(self, programs: tuple[float, ...]) -> None:
        super().__init__(CACHE, VOCAB)
        self._programs = programs
        self.now = self._free_at = self.idle = 0.0
        self.in_flight = self.most_in_flight = 0

    def submit(self, plan: Plan) -> TimedStep:  # type: ignore[override]
        step = super().submit(plan)
        self.now += PACK
        for seconds in self._programs:
            self.now += DISPATCH
            begins = max(self.now, self._free_at)
            self.idle += begins - self._free_at
            self._free_at = begins + seconds
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        return TimedStep(step, self._free_at, self._wait)

    def _wait(self, until: float) -> None:
        self.now = max(self.now, until)
        self.in_flight -= 1


def run(programs: tuple[float, ...], depth: int) -> TimedDevice:
    """1,024 requests, each answered with four tokens: all decode at once."""
    device = TimedDevice(programs)
    schedule = ScheduleConfig(ROWS, 2 * ROWS, 16, prefill_tile=1)
    core = EngineCore(Scheduler(schedule, CacheCoordinator(CACHE), depth=depth), device, depth)
    wires = [make_wire([number % VOCAB], str(number), max_tokens=TOKENS) for number in range(ROWS)]
    for wire in wires:
        core.add(wire)
    found = dict[str, list[int]]()
    while core.has_work:
        for delta in core.step():
            found.setdefault(delta.request_id, []).extend(delta.token_ids)
    assert found == {wire.request_id: truth(wire)[0] for wire in wires}
    assert device.most_in_flight == depth + 1
    return device


def test_two_steps_in_flight_hide_the_second_dispatch() -> None:
    one, two = run((FORWARD + SAMPLE,), 1), run((FORWARD, SAMPLE), 1)
    first = PACK + DISPATCH  # before the device has anything
    assert one.idle == two.idle == first
    assert two.now == one.now


@pytest.mark.parametrize(
    ("programs", "idle"),
    [((FORWARD, SAMPLE), PACK + DISPATCH), ((0.5, SAMPLE), PACK + DISPATCH + 0.5)],
)
def test_one_step_in_flight_idles_between_steps(programs: tuple[float, ...], idle: float) -> None:
    """A forward hides the dispatch behind it only where it takes as long."""
    device = run(programs, 0)
    assert device.idle == TOKENS * idle
