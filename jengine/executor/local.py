"""The local executor: one process, steps queued directly to its runner."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import astuple

from jengine.adapters import AdapterReport
from jengine.errors import EngineDead, RequestError
from jengine.executor.calls import CALLS, decoded_arguments, encoded_answer, encoded_problem
from jengine.executor.protocol import PendingOutput, WorkerHealth
from jengine.executor.read_step import ReadStep
from jengine.outputs import REFUSED, Refusal, StepOutput
from jengine.plan import NewRow, Plan
from jengine.runner.expert_placement import expert_placement, place_experts
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.profiler import PROFILER
from jengine.runner.reports import device_memory
from jengine.runner.runner import PlanRunner
from jengine.runner.sleep import put_to_sleep, reload, wake
from jengine.sampling.raised import Raised
from sharding.jax_settings import engine_context


class LocalExecutor:
    """Owns the runner, and with it the device memory, until shutdown. Runs it under
    `engine_context`, independent of the JAX settings of callers' threads."""

    def __init__(self, runner: PlanRunner) -> None:
        self.step = -1  # the last one begun
        self._runner: PlanRunner | None = runner
        self._functions = OwnFunctions()

    @property
    def runner(self) -> PlanRunner:
        """The runner. Raises after shutdown."""
        if self._runner is None:
            raise EngineDead("this engine was shut down. Create a new one.")
        return self._runner

    @engine_context()
    def submit(self, plan: Plan) -> PendingOutput:
        self.step = plan.step
        uses = self._functions.uses(plan, self.runner.loaded.functions_of)
        step = ReadStep(self.runner.submit(plan), read)
        return watched(uses, step) if uses else step

    @engine_context()
    def update_weights(self, values: Mapping[str, Any]) -> None:
        self.runner.update_parameters(values)

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        """Run the call in this process. Errors are encoded in the answer, as by remote workers."""
        run, loaded = CALLS[method].run, self.runner.loaded
        with engine_context():
            try:
                given = decoded_arguments(method, arguments)
                value = run(loaded, given) if run else RUN[method](loaded, *astuple(given))
            except Exception as error:  # noqa: BLE001 - the caller raises it
                return [encoded_problem(error)]
            return [encoded_answer(value)]

    def health(self) -> list[WorkerHealth]:
        return [WorkerHealth(0, this_process(), self.step, 0.0)]

    @engine_context()
    def shutdown(self) -> None:
        """Drop the runner. Its arrays are freed after the last step in flight."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.loaded.close()


@engine_context()
def read(step: PendingOutput) -> StepOutput:
    return step.result()


def this_process() -> str:
    return f"{platform.node()} process {os.getpid()}"


def no_recording(_: LoadedModel) -> str:
    """Refuse: a FlightRecorder answers this call before it reaches this executor."""
    raise RequestError(
        "this engine keeps no recording of its steps. Create it with flight_recorder=FOLDER."
    )


def add_adapter(
    loaded: LoadedModel,
    folder: str,
    matrices: Mapping[str, np.ndarray],
    alpha: float | None,
    use_rslora: bool,
) -> AdapterReport:
    """Load a LoRA adapter into this process's memory."""
    store = loaded.adapter_store
    if folder:
        digest, adapter = store.add_files(folder)
    else:
        digest, adapter = store.add_live(matrices, alpha, stabilized=use_rslora)
    return AdapterReport(digest, adapter.rank, adapter.nbytes, len(adapter.parts))


def resized(loaded: LoadedModel, num_bytes: int) -> list[int]:
    """Resize the KV cache; returns the blocks of each group."""
    assert loaded.resizing is not None, "set when the model was built"
    return loaded.resizing.resize(loaded, num_bytes)


# Implementation of each call: takes the loaded model and the fields of the arguments.
RUN: dict[str, Callable[..., Any]] = {
    "memory_profile": lambda _: PROFILER.memory(),
    "memory": device_memory,
    "programs": LoadedModel.program_counts,
    "reload_weights": reload,
    "expert_placement": expert_placement,
    "place_experts": place_experts,
    "resize_cache": resized,
    "sleep": put_to_sleep,
    "start_profile": lambda _, folder: PROFILER.start(folder),
    "stop_profile": lambda _: PROFILER.stop(),
    "wake_up": wake,
    "write_recording": no_recording,
    "add_adapter": add_adapter,
    "drop_adapter": lambda loaded, digest: loaded.adapter_store.drop(digest),
}


@dataclass(eq=False)
class Owner:
    """A running request with its own logits processors or interventions."""

    sets: tuple[Raised, ...]
    # What one raised; reported with the request's next token, since prefill chunks sample none.
    problem: str | None = None


class Use(NamedTuple):
    """A scheduled request with functions of its own, and their error counts before the step."""

    owner: Owner
    item: int | None  # index in the output's tokens; None: the step samples no token for it
    before: tuple[int, ...]  # error counts of its sets when the step was queued


class OwnFunctions:
    """Running requests, by row, that have their own logits processors or interventions."""

    def __init__(self) -> None:
        self._owners: dict[int, Owner] = {}  # by row

    def uses(self, plan: Plan, sets_of: Callable[[NewRow], Sequence[Raised]]) -> list[Use]:
        """Return the plan's entries whose requests have functions of their own. Call before
        queueing."""
        for new in plan.new_rows:
            self._owners.pop(new.row, None)
            if sets := sets_of(new):
                self._owners[new.row] = Owner(tuple(sets))
        return list(self._found(plan)) if self._owners else []

    def _found(self, plan: Plan) -> Iterator[Use]:
        items = 0
        for row, wanted in zip(
            plan.entries.rows.tolist(), plan.entries.wants_tokens.tolist(), strict=True
        ):
            if owner := self._owners.get(row):
                before = tuple(one.count for one in owner.sets)
                yield Use(owner, items if wanted else None, before)
            items += wanted


def watched(uses: Sequence[Use], step: PendingOutput) -> PendingOutput:
    """Wrap a queued step so that its output refuses requests whose functions raised."""
    return ReadStep(step, partial(told, uses))


def told(uses: Sequence[Use], step: PendingOutput) -> StepOutput:
    """Read the step and replace the tokens of requests whose functions raised by refusals."""
    output = step.result()
    refusals: dict[int, Refusal] = {}
    for owner, item, before in uses:
        for one, count in zip(owner.sets, before, strict=True):
            if one.count > count:
                owner.problem = one.last
        if owner.problem is not None and item is not None:
            refusals[item] = Refusal(
                f"A callback in a function of this request (intervene=, logits_processors=) has "
                f"raised {owner.problem}. Other requests are not affected.",
                by_request=True,
            )
    if not refusals:
        return output
    tokens = np.array(output.tokens)  # the original may be read-only
    tokens[list(refusals)] = REFUSED
    return output._replace(tokens=tokens, refusals={**output.refusals, **refusals})
