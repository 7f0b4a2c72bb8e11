"""The runner: takes plans, queues compiled steps, hands out results that are not awaited yet.

Owns the device state and the rows' mirror. Steps are queued in the order they are submitted, so a
plan may rely on everything the plans before it did.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from jengine.errors import ConfigError
from jengine.outputs import StepLogprobs, StepOutput
from jengine.plan import NewRow, Plan
from jengine.runner.buckets import Ladders, StepShapes
from jengine.runner.features import needed
from jengine.runner.packing import PackedStep, bucket_for, pack
from jengine.runner.programs import Compiled, Programs
from jengine.runner.rows import Rows
from jengine.runner.state import StepState
from jengine.runner.step import DeviceOutput, Leaves
from jengine.runner.taps import TapSet, TapSets
from jengine.sampling import Admission, admit, pack_admission


class PendingStep(NamedTuple):
    """A queued step; `result()` waits for it."""

    plan: Plan
    packed: PackedStep
    output: DeviceOutput
    prompt_lengths: np.ndarray
    taps: np.ndarray  # the tap set of each entry
    sets: tuple[TapSet, ...]

    @property
    def ready(self) -> bool:
        """Whether the step has run."""
        tokens = self.output.sampled.tokens
        return tokens.is_ready()  # pyrefly: ignore[missing-attribute] - of every array with data

    def result(self) -> StepOutput:
        """The sampled tokens and what else was asked for, side by side with the plan."""
        sampled = self.output.sampled
        tokens = np.asarray(sampled.tokens)[self.packed.slots].tolist()
        logprobs = None
        if sampled.logprobs is not None:
            logprobs = StepLogprobs(*(np.asarray(x)[self.packed.slots] for x in sampled.logprobs))
        return StepOutput(tokens, logprobs, self._prompt_logprobs(), self._captured())

    def _prompt_logprobs(self) -> dict[int, StepLogprobs]:
        if self.output.prompt is None:
            return {}
        scores = StepLogprobs(*(np.asarray(x) for x in self.output.prompt))
        return {entry: self._chunk(scores, entry) for entry in self.packed.chunk_offsets}

    def _chunk(self, scores: StepLogprobs, entry: int) -> StepLogprobs:
        """Scores of the tokens that follow this chunk's tokens and are still prompt."""
        offset, start = self.packed.chunk_offsets[entry], self.plan.starts[entry]
        end = min(start + self.plan.lengths[entry], int(self.prompt_lengths[entry]) - 1)
        count = max(end - start, 0)
        return StepLogprobs(*(x[offset : offset + count] for x in scores))

    def _captured(self) -> dict[int, dict[str, np.ndarray]]:
        """What each entry's tokens left at the tap points that its request asked for."""
        values = {name: np.asarray(array) for name, array in self.output.captured.items()}
        parts: dict[int, dict[str, np.ndarray]] = {}
        for taps in filter(lambda taps: taps.capture, self.sets):
            for entry in np.flatnonzero(self.taps == taps.number).tolist():
                begin = self.packed.first_token(entry)
                end = begin + self.plan.lengths[entry]
                parts[entry] = {name: values[name][begin:end].copy() for name in taps.capture}
        return parts


class Runner:
    """Turns plans into steps on one process's devices."""

    def __init__(
        self,
        leaves: Leaves,
        state: StepState,
        programs: Programs,
        shapes: StepShapes,
        ladders: Ladders,
        vocab_size: int,
        taps: TapSets,
    ) -> None:
        self.leaves = leaves
        self.state = state
        self.programs = programs
        self.shapes = shapes
        self.ladders = ladders
        self.vocab_size = vocab_size
        self.rows = Rows(shapes)
        self.taps = taps
        self._admit: Compiled | None = None

    def submit(self, plan: Plan) -> PendingStep:
        """Queue the step of this plan. Does not wait for it, nor for those before it."""
        self.rows.apply(plan)
        for new in plan.new_rows:
            if new.sampling.adjusts_logits:
                self._admit_row(new)
        bucket = bucket_for(plan, self.shapes, self.ladders)
        packed = pack(plan, self.rows, bucket, self.shapes)
        scheduled = np.asarray(plan.rows, np.int32)
        taps = self.rows.taps[scheduled]
        features = needed(plan, self.rows, self.vocab_size, self.taps.of(taps))
        program, entry = self.programs.find(bucket, features)
        self.state, output = program(self.leaves, self.state, packed.buffer)
        entry.count(plan.num_tokens)
        for array in jax.tree.leaves(output):
            array.copy_to_host_async()
        lengths = self.rows.settings["prompt_length"][scheduled]
        return PendingStep(plan, packed, output, lengths, taps, features.taps)

    def check_leaves(self) -> None:
        """Refuse to run on parameters that somebody else has donated meanwhile."""
        if any(leaf.is_deleted() for leaf in self.leaves):
            raise ConfigError(
                "the engine's parameters were deleted: another computation donated them, such as a "
                "training step. Call update_params with the new ones first."
            )

    def update_leaves(self, leaves: Leaves) -> None:
        """Use other parameters from the next step on; shapes and dtypes were checked before."""
        self.leaves = leaves

    def warm_up_admission(self) -> None:
        """Compile the program that admits rows with penalties, biases or masks."""
        nothing = pack_admission([], 0, vocab=self.vocab_size, max_len=self.shapes.max_model_len)
        self._place_row(0, nothing)

    def _admit_row(self, new: NewRow) -> None:
        sampling = new.sampling
        admission = pack_admission(
            new.token_ids,
            new.prompt_length,
            vocab=self.vocab_size,
            max_len=self.shapes.max_model_len,
            logit_bias=sampling.logit_bias,
            allowed=sampling.allowed_ids,
            stop=sampling.stop_ids,
            bad_words=sampling.bad_words,
        )
        self._place_row(new.row, admission)

    def _place_row(self, row: int, admission: Admission) -> None:
        arguments = (self.state.rows, np.int32(row), admission)
        if self._admit is None:
            # Compiled once by shape: jit would compile again where a step's output is sharded
            # in other words than the first state was.
            everywhere = self.programs.compiler.placement.everywhere
            kept, *new = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere), arguments
            )
            kept = self.programs.compiler.state.rows
            shardings = jax.tree.map(lambda x: x.sharding, kept)
            jitted = jax.jit(admit, donate_argnums=0, out_shardings=shardings)
            self._admit = jitted.lower(kept, *new).compile()
        self.state = self.state._replace(rows=self._admit(*arguments))
