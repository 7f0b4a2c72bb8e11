"""Divides the time of a run into host work, waiting for tokens, and device idle time.

In: an engine core; while the clock runs, its executor is wrapped by one that takes times. Out:
seconds. Costs nothing when unused. Must not know the model. `StepClock` says how the figures are
measured and what they miss.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jengine.engine.core import EngineCore
from jengine.executor.protocol import Executor, PendingOutput
from jengine.outputs import StepOutput
from jengine.plan import Plan


class StepClock:
    """The time of one engine's runs, seen from the host.

    Waiting is the time inside `result()` of a step: until it has run, and until its tokens are
    Python objects. Packing is the time inside `submit()`: filling the buffer, finding the program
    and queuing it. The host's time is all that is not waiting: packing, and scheduling, committing,
    reading prompts and making outputs.

    Device idle time is only observed before and after each of those calls, so there are two
    figures. `idle_at_least`: the last step had ended by one observation and nothing was queued
    until the next. `idle_at_most`: it may have ended right after the observation before, and a new
    step may have reached the device only at the end of `submit`.

    With more running threads than cores the host may wake long after the step has ended, and the
    two figures differ widely.

    Not measured: gaps inside a step, or between two steps of which the second was queued in time;
    the device's copies of tokens; which part of `submit` runs on the device, as small programs do
    on a CPU, where the "device" also takes its time from the same cores as the host. With stages,
    the steps before the first that leaves count as busy.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self.steps = 0
        self.wall = self.packing = self.waiting = 0.0
        self.idle_at_least = self.idle_at_most = 0.0
        # The newest step that has left the last stage, and those behind it.
        self._queued: deque[PendingOutput] = deque()
        self._looked = 0.0
        self._was_idle = False

    @contextmanager
    def running(self, core: EngineCore) -> Iterator[None]:
        """Time this core inside the block, not counting steps queued before it."""
        executor = core.executor
        core.executor = TimedExecutor(executor, self)
        self._was_idle = self._nothing_runs()
        self._looked = began = self.now()
        try:
            yield
        finally:
            core.executor = executor
            self._look()
            self.wall += self._looked - began

    def submitted(self, submit: Callable[[], PendingOutput]) -> PendingOutput:
        """Wrap what `submit` returns so that reading it is timed."""
        self._look()
        began = self._looked
        step = submit()
        self._was_idle = False  # since an unknown moment
        self._look()
        self.packing += self._looked - began
        self.steps += 1
        self._queued.append(step)
        self._was_idle = self._nothing_runs()
        return step

    def waited(self, step: PendingOutput) -> StepOutput:
        """Read a step's output, counting the time as waiting."""
        self._look()
        began, newest = self._looked, bool(self._queued) and step is self._queued[-1]
        # `result` keeps advancing a step that has not left, so the device is busy.
        runs = not step.has_left or (newest and not self._was_idle)
        output = step.result()
        if runs:  # up to the end: it was the last queued step
            self._looked, self._was_idle = self.now(), self._nothing_runs()
        else:
            self._look()
        self.waiting += self._looked - began
        return output

    def as_dict(self) -> dict[str, Any]:
        seconds = {
            "wall_s": self.wall,
            "host_s": self.wall - self.waiting,
            "packing_s": self.packing,
            "waiting_s": self.waiting,
            "idle_at_least_s": self.idle_at_least,
            "idle_at_most_s": self.idle_at_most,
        }
        return {"steps": self.steps, **{name: round(one, 4) for name, one in seconds.items()}}

    def _look(self) -> None:
        """Update the device's busy and idle time since the last observation."""
        now, idle = self.now(), self._nothing_runs()
        if idle:
            self.idle_at_most += now - self._looked
        if idle and self._was_idle:
            self.idle_at_least += now - self._looked
        self._looked, self._was_idle = now, idle

    def _nothing_runs(self) -> bool:
        while len(self._queued) > 1 and self._queued[1].has_left:
            self._queued.popleft()
        return not self._queued or (self._queued[0].has_left and self._queued[0].ready)


class TimedStep:
    """A queued step whose `result` is timed."""

    def __init__(self, step: PendingOutput, clock: StepClock) -> None:
        self.step, self.clock = step, clock

    @property
    def ready(self) -> bool:
        return self.step.ready

    @property
    def has_left(self) -> bool:
        return self.step.has_left

    def result(self) -> StepOutput:
        return self.clock.waited(self.step)


class TimedExecutor:
    """Wraps an executor during a run."""

    def __init__(self, executor: Executor, clock: StepClock) -> None:
        self.executor, self.clock = executor, clock
        self.update_weights, self.call_workers = executor.update_weights, executor.call_workers
        self.health, self.shutdown = executor.health, executor.shutdown

    def submit(self, plan: Plan) -> TimedStep:
        return TimedStep(self.clock.submitted(lambda: self.executor.submit(plan)), self.clock)


def printed(split: dict[str, Any] | None) -> str:
    """One line for people."""
    if split is None:
        return "Time: not divided; that needs a single replica that is scheduled in this process."
    return (
        f"Time: {split['wall_s']:.2f} s in {split['steps']} steps: the host worked "
        f"{split['host_s']:.2f} s (packing {split['packing_s']:.2f} s) and waited "
        f"{split['waiting_s']:.2f} s; the device had no step for {split['idle_at_least_s']:.2f} to "
        f"{split['idle_at_most_s']:.2f} s"
    )
