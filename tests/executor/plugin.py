"""A third party's executor, as `executor="tests.executor.plugin:ScriptedWorkers"` names it.

Its tokens are a function of the tokens before them; nothing is loaded. Records what it is asked.
"""

from __future__ import annotations

from typing import Any, ClassVar

from jengine.config import CacheConfig, CacheGroup, CacheSpec, ScheduleConfig
from jengine.errors import ConfigError
from jengine.executor.calls import encoded_answer
from jengine.executor.protocol import Capacity, EngineJob, WorkerHealth
from jengine.plan import Plan
from jengine.runner.report_types import ProgramCounts
from tests.executor.scripted import ScriptedExecutor, ScriptedResult

VOCAB = 97
GROUP = CacheGroup(CacheSpec("full", 1, 8), (0,))


class ScriptedWorkers:
    """The whole contract in a few lines."""

    started: ClassVar[list[ScriptedWorkers]] = []

    def __init__(self, job: EngineJob) -> None:
        self.job = job
        self.shutdowns = 0
        cache = CacheConfig((GROUP,), 4, (65,))
        self.capacity = Capacity(ScheduleConfig(4, 64, 64, prefill_tile=4), cache, 1, "cpu")
        self.step = -1
        self._scripted = ScriptedExecutor(cache, VOCAB)
        self.started.append(self)

    @classmethod
    def start(cls, job: EngineJob) -> ScriptedWorkers:
        if job.options.get("fail"):
            raise ConfigError("told to fail")
        return cls(job)

    def submit(self, plan: Plan) -> ScriptedResult:
        self.step = plan.step
        return self._scripted.submit(plan)

    def update_weights(self, leaves: Any) -> None:
        raise AssertionError("scripted workers have no parameters")

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        assert method == "programs"
        return [encoded_answer(ProgramCounts(3, 1))]

    def health(self) -> list[WorkerHealth]:
        return [WorkerHealth(0, "on paper", self.step, 0.0)]

    def shutdown(self) -> None:
        self.shutdowns += 1


class WithoutCapacity(ScriptedWorkers):
    """Breaks the contract."""

    def __init__(self, job: EngineJob) -> None:
        super().__init__(job)
        self.capacity = None


class HalfAnExecutor:
    """Lacks most of it."""

    def submit(self, plan: Plan) -> ScriptedResult:
        raise AssertionError("never called")


NOT_A_CLASS = 5
