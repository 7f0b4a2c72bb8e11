"""The runner: packs a plan and queues its compiled step, without waiting for results.

`pipeline_runner.PipelineRunner` and `joint_runner.JointRunner` follow the same protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import jax

from jengine.outputs import StepOutput
from jengine.plan import NO_ENTRIES, Plan
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.plans.needed_features import needed
from jengine.runner.plans.packing import PackedStep, bucket_for, no_prompts, pack, prompt_chunks
from jengine.runner.plans.rows import Rows
from jengine.runner.plans.step_results import PendingStep
from jengine.runner.profiler import PROFILER
from jengine.runner.programs.block_tables import block_entries
from jengine.runner.programs.programs import Found
from jengine.runner.step.beside import BesideInput, StepGiven
from jengine.runner.step.draft_stage import DraftStageInput
from jengine.runner.step.hidden import Forwarded
from jengine.runner.variants.buckets import Bucket
from jengine.runner.variants.features import Features
from jengine.runner.variants.parts import READS_PROMPTS, Part


class StepHandle(Protocol):
    """Future of a submitted plan; see `executor.protocol.PendingOutput`."""

    @property
    def ready(self) -> bool: ...

    @property
    def has_left(self) -> bool: ...

    def result(self) -> StepOutput: ...


class PlanRunner(Protocol):
    """Runs plans in submission order; each may depend on those before it."""

    loaded: LoadedModel

    def submit(self, plan: Plan) -> StepHandle: ...

    def drain(self) -> None:
        """Queue all steps that submitted plans still need. Does not block."""
        ...

    def update_parameters(self, values: Mapping[str, jax.Array]) -> None:
        """Use these parameters for later plans. Shapes and dtypes were already checked."""
        ...


class EmptyRunner(PlanRunner, Protocol):
    """A runner that can run its programs before there are plans."""

    def run_empty(self, bucket: Bucket, features: Features, wanted: int) -> None:
        """Queue a step of this size without tokens, unless all its programs have run `wanted`
        times. It writes nothing that a request reads. No plan may be in flight."""
        ...


class Companion(Protocol):
    """A source of step inputs besides the packed plan: prompt embeddings, images, or encoder
    outputs."""

    # If False, only steps with tokens given as embeddings (`take` returns True) have this input.
    in_every_step: bool

    def take(self, plan: Plan) -> bool:
        """Admit the plan's new rows; returns whether some of its tokens are given as embeddings."""
        ...

    def beside(self, plan: Plan, packed: PackedStep) -> BesideInput:
        """The companion's input of a packed plan's step."""
        ...


# Runs host logits processors on a plan's logits, and samples.
Processed = Callable[[Plan, PackedStep, dict[Part, Found], Forwarded], StepOutput]


class Runner:
    """Runs each plan as one step on one replica's devices.

    `companions` supply further inputs; `processed` runs host logits processors before sampling.
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

    def submit(self, plan: Plan) -> PendingStep:
        loaded, rows = self.loaded, self._rows
        rows.apply(plan)
        features = needed_with(self._companions, plan, rows, loaded)
        chain = loaded.programs.chain(bucket_for(plan, rows, loaded.ladders), features)
        bucket = chain.bucket
        new_blocks = block_entries(plan.new_blocks)
        with PROFILER.pack():
            packed = pack(plan, rows, bucket, loaded.shapes, new_blocks)
        loaded.add_blocks(new_blocks[loaded.shapes.num_new_blocks(bucket) :])
        loaded.admit(plan.new_rows)
        loaded.hold_adapters(plan.new_rows)
        loaded.mask(plan.masks)
        with PROFILER.step(plan.step, bucket):
            output = self._run(plan, packed, chain.parts)
        for found in chain.parts.values():
            found.entry.count(plan.num_tokens, plan.repeats, plan.num_prompt_tokens)
        return PendingStep(plan, packed, output)

    def run_empty(self, bucket: Bucket, features: Features, wanted: int) -> None:
        loaded, nothing = self.loaded, Plan(0, NO_ENTRIES, 0)
        chain = loaded.programs.chain(bucket, features)
        if chain.has_run(wanted):
            return
        packed = pack(nothing, self._rows, chain.bucket, loaded.shapes)
        self._run(nothing, packed, chain.parts)
        score_nothing(loaded, chain.parts)

    def drain(self) -> None:
        """No-op: `submit` queues the whole step."""

    def _run(self, plan: Plan, packed: PackedStep, parts: dict[Part, Found]) -> StepOutput:
        """Queue the programs of a packed plan."""
        main = parts.get(Part.STEP) or parts[Part.FORWARD]
        ran = self.loaded.run(main, given_with(self._companions, plan, packed, main))
        if Part.STEP in parts:
            forwarded, output = ran
        else:
            forwarded, output = ran, sampled(self.loaded, self._processed, plan, packed, parts, ran)
        if forwarded is None:  # multi-step decode
            return output
        output = forwarded.completing(output)
        if Part.DRAFT in parts:
            given = DraftStageInput(forwarded.ran, forwarded.slots, output.tokens)
            output = output._replace(next_drafts=self.loaded.run(parts[Part.DRAFT], given))
        return with_prompts(self.loaded, packed, parts, output)

    def update_parameters(self, values: Mapping[str, jax.Array]) -> None:
        self.loaded.update_parameters(values)


def needed_with(
    companions: Sequence[Companion], plan: Plan, rows: Rows, loaded: LoadedModel
) -> Features:
    """Features that the plan needs, after `rows.apply`. Passes the plan to the companions."""
    own = needed(plan, rows, loaded.vocab_size, loaded.taps, loaded.processors)
    taken = [one.take(plan) for one in companions]
    return replace(own, embeds=True) if any(taken) else own


def given_with(
    companions: Sequence[Companion], plan: Plan, packed: PackedStep, found: Found
) -> StepGiven:
    """A packed plan, with those companions' inputs that the program takes."""
    embeds = found.entry.features.embeds
    beside = [one.beside(plan, packed) for one in companions if embeds or one.in_every_step]
    return StepGiven(packed.buffer, tuple(beside))


def sampled(
    loaded: LoadedModel, processed: Processed | None, plan: Plan, packed: PackedStep,
    parts: dict[Part, Found], forwarded: Forwarded,
) -> StepOutput:  # fmt: skip
    """Queue the sampling or pooling program of a forward."""
    if processed is not None:
        return processed(plan, packed, parts, forwarded)
    return loaded.run(parts.get(Part.SAMPLE) or parts[Part.POOL], forwarded.slots)


def score_nothing(loaded: LoadedModel, parts: dict[Part, Found]) -> None:
    """Queue the programs over prompt tokens on a chunk of padding."""
    for part in READS_PROMPTS & parts.keys():
        size = parts[part].entry.bucket.num_tokens
        loaded.run(parts[part], no_prompts(loaded.shapes, size))


def with_prompts(
    loaded: LoadedModel, packed: PackedStep, parts: dict[Part, Found], output: StepOutput
) -> StepOutput:
    """Queue the programs over prompt tokens (scoring, pooling) chunk by chunk, and add their
    results."""

    def results(found: Found | None) -> Any:
        if found is None or not len(packed.chunk_tokens):
            return None
        chunks = prompt_chunks(packed, loaded.shapes, found.entry.bucket.num_tokens)
        return [loaded.run(found, chunk) for chunk in chunks]

    return output._replace(
        prompt_logprobs=results(parts.get(Part.SCORE)),
        pooled_tokens=results(parts.get(Part.POOL_TOKENS)),
    )
