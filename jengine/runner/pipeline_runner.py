"""Pipeline parallelism: every step runs all stages, each on a different plan.

A plan enters the first stage in the step that its submission queues, moves one stage per step, and
is sampled in the step in which it leaves the last stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import jax

from jengine.errors import StepDropped
from jengine.outputs import StepOutput
from jengine.plan import NO_ENTRIES, Plan
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.plans.packing import PackedStep, bucket_for, pack
from jengine.runner.plans.pipeline_inputs import common_bucket, joined, moved
from jengine.runner.plans.rows import Rows
from jengine.runner.plans.step_results import PendingStep
from jengine.runner.profiler import PROFILER
from jengine.runner.programs.programs import Found
from jengine.runner.runner import (
    Companion,
    Processed,
    given_with,
    needed_with,
    sampled,
    score_nothing,
    with_prompts,
)
from jengine.runner.step.beside import StepGiven
from jengine.runner.step.pipeline_step import PACKED_AXES
from jengine.runner.variants.buckets import Bucket
from jengine.runner.variants.features import Features
from jengine.runner.variants.parts import Part
from sharding.placement import put

# Features of a step in which no plan leaves the last stage: nothing is sampled.
NOTHING = Features()
# Enters the first stage in a step that only advances the plans in flight.
NO_PLAN = Plan(0, NO_ENTRIES, 0)


@dataclass
class PipelinedStep:
    """Future of a submitted plan."""

    plan: Plan
    packed: PackedStep
    features: Features
    advance: Callable[[], None]  # queues another step of all stages
    step: PendingStep | None = None  # the step in which it left the last stage
    failure: BaseException | None = None  # why it will never leave

    @property
    def has_left(self) -> bool:
        """Whether the step that runs the plan in the last stage is queued."""
        return self.step is not None

    @property
    def ready(self) -> bool:
        """Whether that step has run. Also True if it is not queued yet, since `result` queues
        it."""
        return self.step is None or self.step.ready

    def result(self) -> StepOutput:
        """Queue the steps that the plan still needs, and wait for the last one. Raises StepDropped
        if it was in a stage of a step that could not be queued."""
        while self.step is None:
            if self.failure is not None:
                raise StepDropped("it was in the stages of a step that failed.") from self.failure
            self.advance()
        return self.step.result()


class PipelineRunner:
    """Runs the plans of one replica with one plan in flight per stage.

    A plan is packed when it is submitted, since its rows may serve other requests when it leaves.
    `companions` supply further inputs of the plan that enters; what later stages need of them
    travels with its activations. `processed` runs host logits processors for the plan that leaves.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        companions: Sequence[Companion] = (),
        processed: Processed | None = None,
    ) -> None:
        self.loaded = loaded
        self._companions = companions
        self._processed = processed
        self._rows = Rows(loaded.shapes)
        # The plans that the second and later stages run in the next step.
        self._held: tuple[PipelinedStep | None, ...] = (None,) * (loaded.placement.num_stages - 1)

    def submit(self, plan: Plan) -> PipelinedStep:
        """Queue a step in which the plan enters the first stage. Waits for no results."""
        loaded, rows = self.loaded, self._rows
        rows.apply(plan)
        features = needed_with(self._companions, plan, rows, loaded)
        bucket = bucket_for(plan, rows, loaded.ladders)
        loaded.programs.expect(bucket, features)
        # Plans in the stages may still run with the adapters that were in these slots.
        loaded.hold_adapters(plan.new_rows, before=self.drain)
        packed = pack(plan, rows, bucket, loaded.shapes)
        entering = PipelinedStep(plan, packed, features, self._advance)
        self._advance(entering)
        return entering

    def run_empty(self, bucket: Bucket, features: Features, wanted: int) -> None:
        loaded = self.loaded
        chain = loaded.programs.chain(bucket, features)
        if chain.has_run(wanted):
            return
        nothing, forward = [None] * loaded.placement.num_stages, chain.parts[Part.FORWARD]
        forwarded = loaded.run(forward, self._input(NO_PLAN, nothing, chain.bucket, forward))
        packed = pack(NO_PLAN, self._rows, chain.bucket, loaded.shapes)
        sampled(loaded, self._processed, NO_PLAN, packed, chain.parts, forwarded)
        score_nothing(loaded, chain.parts)

    def drain(self) -> None:
        """Queue the steps that bring all plans in flight through the last stage."""
        while any(self._held):
            self._advance()

    def update_parameters(self, values: Mapping[str, jax.Array]) -> None:
        """Use these parameters for later plans; plans in the stages finish with the old ones."""
        self.drain()
        self.loaded.update_parameters(values)

    def _advance(self, entering: PipelinedStep | None = None) -> None:
        """Queue one step of all stages. Without an entering plan the first stage runs padding.

        If it raises (host logits processors may be interrupted), how far each stage came is
        unknown, so all plans in the stages are dropped.
        """
        running = (entering, *self._held)
        try:
            self._queue(running)
            self._held = running[:-1]
        except BaseException as error:
            self._held = (None,) * len(self._held)
            for one in running:
                if one is not None:
                    one.failure = error
            raise

    def _queue(self, running: tuple[PipelinedStep | None, ...]) -> None:
        """Queue one step of these plans, by stage."""
        loaded, entering, leaving = self.loaded, running[0], running[-1]
        packed = [None if one is None else one.packed for one in running]
        features = replace(
            NOTHING if leaving is None else leaving.features,
            adapters=any(one.features.adapters for one in running if one is not None),
            embeds=any(one.features.embeds for one in running if one is not None),
        )
        bucket, parts = loaded.programs.chain(common_bucket(packed, loaded.ladders), features)
        packed = [None if one is None else moved(one, bucket, loaded.shapes) for one in packed]
        if leaving is not None:
            # Not earlier: plans ahead of it may still sample for these rows' previous requests.
            loaded.admit(leaving.plan.new_rows)
            loaded.mask(leaving.plan.masks)
        plans = [one.plan for one in running if one is not None]
        with PROFILER.step(plans[0].step if plans else -1, bucket):
            plan, forward = NO_PLAN if entering is None else entering.plan, parts[Part.FORWARD]
            forwarded = loaded.run(forward, self._input(plan, packed, bucket, forward))
            if leaving is not None and packed[-1] is not None:
                last = packed[-1]
                output = sampled(loaded, self._processed, leaving.plan, last, parts, forwarded)
                output = with_prompts(loaded, last, parts, forwarded.completing(output))
                leaving.step = PendingStep(leaving.plan, last, output)
        for part, found in parts.items():
            if part is Part.FORWARD or leaving is not None:
                found.entry.count(
                    sum(plan.num_tokens for plan in plans) // len(running),
                    prompt_tokens=sum(plan.num_prompt_tokens for plan in plans) // len(running),
                )

    def _input(
        self, plan: Plan, packed: Sequence[PackedStep | None], bucket: Bucket, found: Found
    ) -> StepGiven:
        """The packed input of all stages, on the devices, and the entering plan's companion
        inputs."""
        loaded = self.loaded
        rows = joined(packed, bucket, loaded.shapes)
        first = packed[0] or pack(plan, self._rows, bucket, loaded.shapes)
        given = given_with(self._companions, plan, first, found)
        return given._replace(packed=put(rows, loaded.placement.sharding(PACKED_AXES, rows.shape)))
