"""The runner: packs a plan, finds its compiled step and queues it. Does not wait for results.

`pipeline_runner.PipelineRunner` fulfils the same contract for models in pipeline stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import jax

from jengine.outputs import StepOutput
from jengine.plan import NO_ENTRIES, Plan
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.plans.needed_features import needed
from jengine.runner.plans.packing import PackedStep, bucket_for, no_prompts, pack, prompt_chunks
from jengine.runner.plans.results import PendingStep
from jengine.runner.plans.rows import Rows
from jengine.runner.profiler import PROFILER
from jengine.runner.programs.block_tables import block_entries
from jengine.runner.programs.programs import Found
from jengine.runner.step.guessing import GuessInput
from jengine.runner.step.hidden import Forwarded
from jengine.runner.variants.buckets import Bucket
from jengine.runner.variants.features import Features
from jengine.runner.variants.parts import READS_PROMPTS, Part


class StepHandle(Protocol):
    """A submitted plan. `executor.protocol.PendingOutput` says what its members mean."""

    @property
    def ready(self) -> bool: ...

    @property
    def has_left(self) -> bool: ...

    def result(self) -> StepOutput: ...


class PlanRunner(Protocol):
    """Runs plans in the order of submission: each relies on the plans before it."""

    loaded: LoadedModel

    def submit(self, plan: Plan) -> StepHandle:
        """Queue the step of this plan. Waits for no step."""
        ...

    def drain(self) -> None:
        """Queue what submitted plans still need, so that all of them have left. Waits for none."""
        ...

    def update_parameters(self, values: Mapping[str, jax.Array]) -> None:
        """Use these parameters for later plans; shapes and dtypes were checked before."""
        ...


class Companion(Protocol):
    """Arrays that come beside packed plans: embeddings, images, an encoder's output."""

    def take(self, plan: Plan) -> bool:
        """Take up the plan's rows; whether some of its tokens come as embeddings."""
        ...

    def beside(self, plan: Plan, packed: PackedStep) -> Any:
        """The packed plan with its arrays, as programs take it."""
        ...


class Runner:
    """Runs each plan in one step, on one replica's devices. `companion` brings what comes beside
    the plan, and `processed` samples from logits that the host has changed."""

    def __init__(
        self,
        loaded: LoadedModel,
        companion: Companion | None = None,
        processed: Callable[..., StepOutput] | None = None,
    ) -> None:
        self.loaded = loaded
        self._companion = companion
        self._processed = processed
        self._rows = Rows(loaded.shapes)

    def submit(self, plan: Plan) -> PendingStep:
        """Queue the step of this plan. Waits for no step."""
        loaded, rows = self.loaded, self._rows
        rows.apply(plan)
        chain = loaded.programs.chain(bucket_for(plan, rows, loaded.ladders), self._needed(plan))
        bucket = chain.bucket
        new_blocks = block_entries(plan.new_blocks)
        with PROFILER.pack():
            packed = pack(plan, rows, bucket, loaded.shapes, new_blocks)
        loaded.add_blocks(new_blocks[loaded.shapes.num_new_blocks(bucket) :])
        loaded.admit(plan.new_rows)
        loaded.mask(plan.masks)
        with PROFILER.step(plan.step, bucket):
            output = self._run(plan, packed, chain.parts)
        for found in chain.parts.values():
            found.entry.count(plan.num_tokens, plan.repeats, plan.num_prompt_tokens)
        return PendingStep(plan, packed, output)

    def run_empty(self, bucket: Bucket, features: Features, wanted: int) -> None:
        """Queue a step of such a size that runs no token, if a program of it has run less often
        than `wanted`. It writes nothing that a request reads."""
        loaded, nothing = self.loaded, Plan(0, NO_ENTRIES, 0)
        chain = loaded.programs.chain(bucket, features)
        if any(found.entry.executions < wanted for found in chain.parts.values()):
            packed = pack(nothing, self._rows, chain.bucket, loaded.shapes)
            self._run(nothing, packed, chain.parts)
            for part in READS_PROMPTS & chain.parts.keys():
                size = chain.parts[part].entry.bucket.num_tokens
                loaded.run(chain.parts[part], no_prompts(loaded.shapes, size))

    def drain(self) -> None:
        """Nothing: every plan was queued whole."""

    def _needed(self, plan: Plan) -> Features:
        """The features of the plan's rows, which are up to date."""
        loaded = self.loaded
        own = needed(plan, self._rows, loaded.vocab_size, loaded.taps, loaded.processors)
        return own if self._companion is None else replace(own, embeds=self._companion.take(plan))

    def _run(self, plan: Plan, packed: PackedStep, parts: dict[Part, Found]) -> StepOutput:
        """Queue the programs of a packed plan."""
        beside = self._companion
        given = packed.buffer if beside is None else beside.beside(plan, packed)
        if Part.STEP in parts:
            forwarded, output = self.loaded.run(parts[Part.STEP], given)
        else:
            forwarded = self.loaded.run(parts[Part.FORWARD], given)
            output = self._sampled(plan, packed, parts, forwarded)
        if forwarded is None:  # of several steps
            return output
        output = forwarded.completing(output)
        if Part.GUESS in parts:
            given = GuessInput(forwarded.ran, forwarded.slots, output.tokens)
            output = output._replace(guesses=self.loaded.run(parts[Part.GUESS], given))
        return with_prompts(self.loaded, packed, parts, output)

    def _sampled(
        self, plan: Plan, packed: PackedStep, parts: dict[Part, Found], forwarded: Forwarded
    ) -> StepOutput:
        """Queue the sampling or pooling program."""
        if self._processed is not None:
            temperature = self._rows.settings["temperature"]
            return self._processed(plan, packed, parts, forwarded, temperature)
        return self.loaded.run(parts.get(Part.SAMPLE) or parts[Part.POOL], forwarded.slots)

    def update_parameters(self, values: Mapping[str, jax.Array]) -> None:
        """Use these parameters for later plans; shapes and dtypes were checked before."""
        self.loaded.update_parameters(values)


def with_prompts(
    loaded: LoadedModel, packed: PackedStep, parts: dict[Part, Found], output: StepOutput
) -> StepOutput:
    """Queue programs over prompt tokens, in chunks; adds their results to the output."""

    def results(found: Found | None) -> Any:
        if found is None or not len(packed.chunk_tokens):
            return None
        chunks = prompt_chunks(packed, loaded.shapes, found.entry.bucket.num_tokens)
        return [loaded.run(found, chunk) for chunk in chunks]

    return output._replace(
        prompt_logprobs=results(parts.get(Part.SCORE)),
        pooled_tokens=results(parts.get(Part.POOL_TOKENS)),
    )
