"""The runner: takes plans, queues compiled steps, hands out results that are not awaited yet.

Owns the device state and the rows' mirror. Plans pass every stage in the order in which they are
submitted, so a plan may rely on everything the plans before it did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jengine.errors import ConfigError
from jengine.outputs import StepLogprobs, StepOutput
from jengine.plan import NewRow, Plan
from jengine.runner.background import BackgroundWarmUp
from jengine.runner.buckets import Bucket, Ladders, StepShapes
from jengine.runner.features import Features, needed
from jengine.runner.leaves import LeafOrder, Leaves
from jengine.runner.ledger import ProgramCounts
from jengine.runner.packing import PackedStep, bucket_for, pack
from jengine.runner.pipeline_inputs import common_bucket, joined, moved
from jengine.runner.pipeline_step import PACKED_AXES
from jengine.runner.plan_arrays import PlanArrays, plan_arrays
from jengine.runner.programs import Compiled, Programs
from jengine.runner.rows import Rows
from jengine.runner.state import StepState
from jengine.runner.step import DeviceOutput
from jengine.runner.taps import TapSets
from jengine.sampling import Admission, admit, pack_admission
from sharding.mesh import steps_may_queue
from sharding.placement import put

# What a step needs in which nobody samples.
NOTHING = Features()


@dataclass
class PendingStep:
    """A plan that was submitted; `result()` waits for it."""

    plan: Plan
    packed: PackedStep
    features: Features
    arrays: PlanArrays
    # Of each entry, when it was packed: its row may be another request's when it is read.
    prompt_lengths: np.ndarray
    logprobs: np.ndarray  # see `Rows`
    prompt_logprobs: np.ndarray
    taps: np.ndarray  # the tap set
    advance: Callable[[], None]  # runs the stages once more
    output: DeviceOutput | None = None  # None: it has not left the last stage

    @property
    def has_left(self) -> bool:
        """Whether it has left the last stage, so that there is something to wait for."""
        return self.output is not None

    @property
    def ready(self) -> bool:
        """Whether the step has run. One that has not left runs on when it is read."""
        if self.output is None:
            return True
        tokens = self.output.sampled.tokens
        return tokens.is_ready()  # pyrefly: ignore[missing-attribute] - of every array with data

    def result(self) -> StepOutput:
        """Wait for the step: the sampled tokens and what else its entries asked for."""
        while self.output is None:
            self.advance()
        sampled, prompt, captured = self.output
        found = StepOutput.of_tokens(self.plan, self._by_entry(sampled.tokens).tolist())
        if sampled.logprobs is not None:
            self._add_logprobs(found, StepLogprobs(*map(self._by_entry, sampled.logprobs)))
        if prompt is not None:
            self._add_prompt_logprobs(found, StepLogprobs(*map(np.asarray, prompt)))
        self._add_captured(found, {name: np.asarray(array) for name, array in captured.items()})
        return found

    def _by_entry(self, array: jax.Array) -> np.ndarray:
        """[entries that want tokens, runs, ...]: several runs in a multi-step decode, else one."""
        found, slots = np.asarray(array), self.packed.slots
        if not self.packed.bucket.is_multi_step:
            return found[slots, None]
        return found[: self.plan.repeats, slots].swapaxes(0, 1)

    def _add_logprobs(self, found: StepOutput, scores: StepLogprobs) -> None:
        for index, entry in enumerate(np.flatnonzero(self.arrays.samples).tolist()):
            columns = int(self.logprobs[entry])
            if columns:
                own = StepLogprobs(*(array[index] for array in scores))
                found.entries[entry].logprobs = first_columns(own, columns)

    def _add_prompt_logprobs(self, found: StepOutput, scores: StepLogprobs) -> None:
        """Scores of the tokens that follow a chunk's tokens and are still prompt."""
        for entry, offset in self.packed.chunk_offsets.items():
            start, length, columns = (
                int(x[entry])
                for x in (self.arrays.starts, self.arrays.lengths, self.prompt_logprobs)
            )
            count = min(length, int(self.prompt_lengths[entry]) - 1 - start)
            if columns and count > 0:
                own = first_columns(scores.cut(offset, offset + count), columns)
                found.entries[entry].prompt_logprobs = own

    def _add_captured(self, found: StepOutput, values: dict[str, np.ndarray]) -> None:
        """What each entry's tokens left at the tap points that its request asked for."""
        for taps in filter(lambda taps: taps.capture, self.features.taps):
            for entry in np.flatnonzero(self.taps == taps.number).tolist():
                begin = self.packed.first_token(entry)
                end = begin + int(self.arrays.lengths[entry])
                own = {name: values[name][begin:end].copy() for name in taps.capture}
                found.entries[entry].captured = own


def first_columns(scores: StepLogprobs, columns: int) -> StepLogprobs:
    """As many columns as a row asked for (see `rows.wanted_columns`)."""
    wanted = slice(None if columns < 0 else columns)
    return StepLogprobs(scores.values[..., wanted], scores.ids[..., wanted], scores.rank)


class Runner:
    """Turns plans into steps on one process's devices.

    A plan is in the first stage in the step that it is submitted for and in one further on in each
    step after; with one stage it leaves at once. Its blocks and row settings are packed when it
    comes, since its row may be somebody else's when it leaves.
    """

    def __init__(
        self,
        leaves: Leaves,
        state: StepState,
        programs: Programs,
        shapes: StepShapes,
        ladders: Ladders,
        vocab_size: int,
        taps: TapSets,
        order: LeafOrder,
    ) -> None:
        self.leaves = leaves
        self.state = state
        self.programs = programs
        self.shapes = shapes
        self.ladders = ladders
        self.vocab_size = vocab_size
        self.order = order
        self.rows = Rows(shapes)
        self.taps = taps
        self.background: BackgroundWarmUp | None = None  # what compiles while steps run
        self._admit: Compiled | None = None
        self._placement = programs.compiler.placement
        # What the second stage and those behind it will run next.
        self._line: tuple[PendingStep | None, ...] = (None,) * (self._placement.num_stages - 1)
        self._may_queue = steps_may_queue(self._placement.mesh)

    def submit(self, plan: Plan) -> PendingStep:
        """Queue the step of this plan. Does not wait for it, nor for those before it."""
        self.rows.apply(plan)
        pending = self._prepared(plan)
        if self._line:
            self.programs.expect(pending.packed.bucket, pending.features)
        self._advance(pending)
        return pending

    def _prepared(self, plan: Plan) -> PendingStep:
        arrays, rows = plan_arrays(plan), self.rows
        bucket = bucket_for(arrays, self.shapes, self.ladders)
        packed = pack(arrays, rows, bucket, self.shapes)
        taps = rows.taps[arrays.rows]
        return PendingStep(
            plan,
            packed,
            needed(arrays, rows, self.vocab_size, self.taps.of(taps)),
            arrays,
            rows.settings["prompt_length"][arrays.rows],
            rows.logprobs[arrays.rows],
            rows.prompt_logprobs[arrays.rows],
            taps,
            self._advance,
        )

    def _advance(self, entering: PendingStep | None = None) -> None:
        """Queue one step of all stages; without a new plan only those before it go on."""
        line = (entering, *self._line)
        leaving = line[-1]
        held = [None if pending is None else pending.packed for pending in line]
        features = NOTHING if leaving is None else leaving.features
        bucket = self.programs.standing_in(common_bucket(held, self.ladders), features)
        program, entry = self.programs.find(bucket, features)
        held = [None if packed is None else moved(packed, bucket, self.shapes) for packed in held]
        self._line = line[:-1]
        if leaving is not None:
            self._admit_rows(leaving.plan)
        self.state, output = program(self.leaves, self.state, self._input(held, bucket))
        plans = [pending.plan for pending in line if pending]
        repeats = max((plan.repeats for plan in plans), default=1)
        entry.count(sum(plan.num_tokens for plan in plans) // len(line), repeats)
        if leaving is not None and held[-1] is not None:
            leaving.packed, leaving.output = held[-1], output
            for array in jax.tree.leaves(output):
                array.copy_to_host_async()
        if not self._may_queue:
            jax.block_until_ready(self.state.last_token)

    def _input(self, held: Sequence[PackedStep | None], bucket: Bucket) -> Any:
        """What a step reads from the host."""
        if len(held) == 1 and held[0] is not None:
            return held[0].buffer
        rows = joined(held, bucket, self.shapes)
        return put(rows, self._placement.sharding(PACKED_AXES, rows.shape))

    def check_leaves(self) -> None:
        """Refuse to run on parameters that somebody else has donated meanwhile."""
        if any(leaf.is_deleted() for leaf in self.leaves):
            raise ConfigError(
                "the engine's parameters were deleted: another computation donated them, such as a "
                "training step. Call update_params with the new ones first."
            )

    def program_counts(self) -> ProgramCounts:
        """How many programs this runner has."""
        ledger = self.programs.ledger
        return ProgramCounts(
            len(ledger.entries), ledger.compiles_after_warm_up, len(ledger.to_come)
        )

    def wait_until_warm(self, timeout: float | None = None) -> bool:
        """Wait until nothing is compiled in the background; whether every program is there."""
        return self.background is None or self.background.wait(timeout)

    def close(self) -> None:
        """Let nothing go on in the background. Others may share it."""
        if self.background is not None:
            self.background.stop()

    def update_leaves(self, leaves: Leaves) -> None:
        """Use other parameters for the plans to come; shapes and dtypes were checked before."""
        while any(self._line):  # what is on its way goes the rest of it with the old ones
            self._advance()
        self.leaves = leaves

    def parameters(self) -> dict[str, jax.Array]:
        """The parameters in use, by path. They are not copied."""
        return self.order.values(self.leaves)

    def warm_up_admission(self) -> None:
        """Compile the program that admits rows with penalties, biases or masks."""
        nothing = pack_admission([], 0, vocab=self.vocab_size, max_len=self.shapes.max_model_len)
        self._place_row(0, nothing)

    def _admit_rows(self, plan: Plan) -> None:
        """Only when the plan is sampled, which is all that this is for: those before it may still
        sample for the rows' former requests."""
        for new in plan.new_rows:
            if new.sampling.adjusts_logits:
                self._admit_row(new)

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
            everywhere = self._placement.everywhere
            kept, *new = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere), arguments
            )
            kept = self.programs.compiler.state.rows
            shardings = jax.tree.map(lambda x: x.sharding, kept)
            jitted = jax.jit(admit, donate_argnums=0, out_shardings=shardings)
            self._admit = jitted.lower(kept, *new).compile()
        self.state = self.state._replace(rows=self._admit(*arguments))
