"""Transfers a step's results to the host and reorders them to match its plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jengine.outputs import NO_TOKEN, StepLogprobs, StepOutput
from jengine.plan import Plan
from jengine.runner.plans.packing import PackedStep


@dataclass(frozen=True)
class PendingStep:
    """Future of a queued step's results."""

    plan: Plan
    packed: PackedStep
    output: StepOutput  # on the device

    def __post_init__(self) -> None:
        for array in jax.tree.leaves(self.output):
            array.copy_to_host_async()

    @property
    def has_left(self) -> bool:
        """Always True: there are no pipeline stages."""
        return True

    @property
    def ready(self) -> bool:
        return self.output.tokens.is_ready()

    def result(self) -> StepOutput:
        """Wait for the step and read its results."""
        output, packed = self.output, self.packed
        prompt_logprobs = scores_of(whole(output.prompt_logprobs), lambda x: x[packed.chunk_tokens])
        captured, experts = {}, None
        if output.captured or output.experts is not None:
            decodes = np.arange(self.plan.num_decode_rows)
            tokens = np.concatenate([decodes, packed.chunk_base + packed.chunk_tokens])
            for (first, count), values in output.captured.items():
                found = {name: np.asarray(x)[tokens] for name, x in values.items()}
                captured |= dict.fromkeys(range(first, first + count), found)
            if output.experts is not None:
                experts = np.asarray(output.experts)[tokens]
        return StepOutput(
            self._filled(self._by_entry(np.asarray(output.tokens))),
            scores_of(output.logprobs, self._by_entry),
            prompt_logprobs,
            captured,
            experts,
            pooled=pooled_of(output.pooled, packed.slots),
            pooled_tokens=pooled_of(whole(output.pooled_tokens), packed.chunk_tokens),
            next_drafts=None if output.next_drafts is None else np.asarray(output.next_drafts),
        )

    def _by_entry(self, found: np.ndarray) -> np.ndarray:
        """Results as [sampling entries, runs, ...]: several runs in multi-step decode or with
        drafts, else one."""
        slots, widths = self.packed.slots, self.packed.widths
        if widths is not None:
            within = np.minimum(np.arange(widths.max()), widths[:, None] - 1)
            return found[slots[:, None] + within]
        if not self.packed.bucket.is_multi_step:
            return found[slots, None]
        return found[: self.plan.repeats, slots].swapaxes(0, 1)

    def _filled(self, tokens: np.ndarray) -> np.ndarray:
        """Set tokens beyond each entry's slots to NO_TOKEN."""
        widths = self.packed.widths
        if widths is not None:
            tokens[np.arange(tokens.shape[1]) >= widths[:, None]] = NO_TOKEN
        return tokens


def pooled_of(rows: Any, places: np.ndarray) -> np.ndarray | None:
    """Copy these rows of the pooled output to the host."""
    return None if rows is None else np.asarray(rows)[places]


def whole(found: Any) -> Any:
    """Concatenate results that were computed in chunks."""
    if not isinstance(found, list):
        return found
    return jax.tree.map(lambda *chunks: np.concatenate(chunks), *found)


def scores_of(
    scores: StepLogprobs | None, in_order: Callable[[np.ndarray], np.ndarray]
) -> StepLogprobs | None:
    """Copy log-probabilities to the host, reordered."""
    if scores is None:
        return None
    return StepLogprobs(*(in_order(np.asarray(array)) for array in scores))
