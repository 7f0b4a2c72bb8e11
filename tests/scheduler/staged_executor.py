"""A pipeline of scripted stages below the real runner of transfers.

Each stage is a scripted executor with a cache of its own, and asserts that rows read back their own
text. A plan reaches a stage when it has passed those before it, as in `runner.pipeline_runner`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from jengine.outputs import StepOutput
from jengine.plan import BlockCopies, Fetch, Plan
from jengine.runner.transfers.transfer_runner import TransferRunner, TransferStep
from tests.executor.scripted import ScriptedExecutor
from tests.executor.scripted_transfers import ScriptedTransfers


class StagedStep:
    """A plan on its way through the stages."""

    def __init__(self, plan: Plan, advance: Callable[[], None]) -> None:
        self.plan = replace(plan, transfers=None)
        self.output: StepOutput | None = None
        self._advance = advance

    @property
    def has_left(self) -> bool:
        return self.output is not None

    @property
    def ready(self) -> bool:
        return True

    def result(self) -> StepOutput:
        while self.output is None:
            self._advance()
        return self.output


class StagedRunner:
    """Keeps a plan in every stage; a stage is what runs a plan there."""

    def __init__(self, stages: Sequence[Callable[[Plan], StepOutput]]) -> None:
        self.loaded: Any = SimpleNamespace(closing=[])
        self._stages = stages
        self._held: tuple[StagedStep | None, ...] = (None,) * (len(stages) - 1)

    def submit(self, plan: Plan) -> StagedStep:
        entering = StagedStep(plan, self._advance)
        self._advance(entering)
        return entering

    def drain(self) -> None:
        while any(self._held):
            self._advance()

    def update_parameters(self, values: Mapping[str, Any]) -> None:
        self.drain()

    def _advance(self, entering: StagedStep | None = None) -> None:
        running = (entering, *self._held)
        for stage, step in zip(self._stages, running, strict=True):
            if step is not None:
                output = stage(step.plan)
        self._held = running[:-1]
        if running[-1] is not None:
            running[-1].output = output


class StagedCopies:
    """Slots of the host with the parts of all stages."""

    def __init__(self, stages: Sequence[ScriptedTransfers]) -> None:
        self.stages = stages

    def reset(self) -> None:
        for stage in self.stages:
            stage.reset()

    def tidy(self) -> None:
        pass

    def close(self) -> None:
        pass

    def load(self, copies: BlockCopies) -> None:
        for stage in self.stages:
            stage.load(copies)

    def save(self, copies: BlockCopies) -> None:
        for stage in self.stages:
            stage.save(copies)

    def fetch(self, fetches: Sequence[Fetch]) -> None:
        for stage in self.stages:
            stage.fetch(fetches)

    def ended(self, wait: float) -> dict[int, bool]:
        found = [stage.ended() for stage in self.stages]
        assert len({tuple(one) for one in found}) == 1, "the stages do not fetch the same"
        return {number: all(one[number] for one in found) for number in found[0]}


class ScriptedTransferRunner(TransferRunner):
    """The runner of transfers, whose copies load and save blocks without programs."""

    def __init__(self, runner: StagedRunner, copies: Any) -> None:
        super().__init__(runner, (), copies)
        self._scripted = copies

    def _load(self, copies: BlockCopies) -> None:
        self._scripted.load(copies)

    def _save(self, copies: BlockCopies) -> None:
        self._scripted.save(copies)


def output_of(executor: ScriptedExecutor, plan: Plan) -> StepOutput:
    return executor.submit(plan).output


class StagedExecutor:
    """Runs plans with transfers in so many stages; otherwise like the given executor."""

    def __init__(
        self,
        like: ScriptedExecutor,
        stages: int,
        stored: dict[bytes, Any],
        arrives: Callable[[Fetch], bool | None],
    ) -> None:
        """`stored`: what the first stage has of what is further away."""
        executors = [ScriptedExecutor(like.cache, like.vocab_size) for _ in range(stages)]
        parts = [
            ScriptedTransfers(one.cache, one._cache.cached, one._states, far, arrives)
            for one, far in zip(executors, [stored, *({} for _ in executors[1:])], strict=True)
        ]
        stages = [partial(output_of, one) for one in executors]
        self._runner = ScriptedTransferRunner(StagedRunner(stages), StagedCopies(parts))

    def submit(self, plan: Plan) -> TransferStep:
        return self._runner.submit(plan)
