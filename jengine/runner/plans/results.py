"""Reads a step's results from the device and puts them side by side with the plan."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np

from jengine.outputs import StepLogprobs, StepOutput
from jengine.plan import Plan
from jengine.runner.plans.packing import PackedStep
from jengine.runner.plans.plan_arrays import PlanArrays
from jengine.runner.plans.prepare import PlanNeeds
from jengine.runner.step.heads import DeviceOutput


@dataclass(frozen=True)
class PendingStep:
    """A queued step that runs a plan to its end."""

    plan: Plan
    arrays: PlanArrays
    packed: PackedStep
    needs: PlanNeeds
    output: DeviceOutput

    def __post_init__(self) -> None:
        for array in jax.tree.leaves(self.output):
            array.copy_to_host_async()

    @property
    def has_left(self) -> bool:
        """Whether nothing more has to be queued before it can be read."""
        return True

    @property
    def ready(self) -> bool:
        """Whether the step has run."""
        tokens = self.output.sampled.tokens
        return tokens.is_ready()  # pyrefly: ignore[missing-attribute] - of every array with data

    def result(self) -> StepOutput:
        """Wait for the step: the sampled tokens and what else its entries asked for."""
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
            columns = int(self.needs.logprobs[entry])
            if columns:
                own = StepLogprobs(*(array[index] for array in scores))
                found.entries[entry].logprobs = first_columns(own, columns)

    def _add_prompt_logprobs(self, found: StepOutput, scores: StepLogprobs) -> None:
        """Scores of the tokens that follow a chunk's tokens and are still prompt."""
        needs = self.needs
        for entry, offset in self.packed.chunk_offsets.items():
            start, length, columns = (
                int(x[entry])
                for x in (self.arrays.starts, self.arrays.lengths, needs.prompt_logprobs)
            )
            count = min(length, int(needs.prompt_lengths[entry]) - 1 - start)
            if columns and count > 0:
                own = first_columns(scores.cut(offset, offset + count), columns)
                found.entries[entry].prompt_logprobs = own

    def _add_captured(self, found: StepOutput, values: dict[str, np.ndarray]) -> None:
        """The values of each entry's tokens at the tap points that its request asked for."""
        for taps in filter(lambda taps: taps.capture, self.needs.features.taps):
            for entry in np.flatnonzero(self.needs.taps == taps.number).tolist():
                begin = self.packed.first_token(entry)
                end = begin + int(self.arrays.lengths[entry])
                own = {name: values[name][begin:end].copy() for name in taps.capture}
                found.entries[entry].captured = own


def first_columns(scores: StepLogprobs, columns: int) -> StepLogprobs:
    """As many columns as a row asked for (see `rows.wanted_columns`)."""
    wanted = slice(None if columns < 0 else columns)
    return StepLogprobs(scores.values[..., wanted], scores.ids[..., wanted], scores.rank)
