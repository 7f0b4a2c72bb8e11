"""Runs host logits processors (vLLM's interface) on the logits of a step.

In: plans, the logits of their sampling slots, and the tokens sampled. Out: changed logits. Must not
know how logits are made, or what is sampled from them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jengine.errors import ConfigError
from jengine.logits_processor import LogitsProcessor, ProcessorConfig
from jengine.plan import Plan
from jengine.runner.host_batch import BatchRow, HostBatch


class HostProcessors:
    """The processors of one runner, one object of each class."""

    def __init__(self, classes: Sequence[type[LogitsProcessor]], config: ProcessorConfig) -> None:
        processors = [one(config, "cpu", False) for one in classes]
        # Those that leave greedy answers alone come last, and see what is drawn from.
        self._first = [one for one in processors if not one.is_argmax_invariant()]
        self._second = [one for one in processors if one.is_argmax_invariant()]
        self._batch = HostBatch()
        self._sampled: list[BatchRow] = []  # whose tokens the last step sampled

    def read(self, tokens: np.ndarray) -> None:
        """Record the tokens sampled by the last step, one per row."""
        self._batch.take(self._sampled, tokens.tolist())
        self._sampled = []

    def apply(self, plan: Plan, logits: np.ndarray, temperature: np.ndarray) -> np.ndarray:
        """Apply processors to a plan's logits, f32 [sampled rows, vocabulary]. `temperature` is
        indexed by engine row."""
        update = self._batch.update(plan)
        sampled = plan.entries.rows[plan.entries.wants_tokens].tolist()
        self._sampled = [self._batch.rows[row] for row in sampled]
        places = [row.place for row in self._sampled]
        batch = np.zeros((len(self._batch), logits.shape[1]), np.float32)
        batch[places] = logits
        for one in (*self._first, *self._second):
            one.update_state(update)
        for one in self._first:
            batch = applied(one, batch)
        heat = np.zeros(len(batch), np.float32)
        heat[places] = temperature[sampled]
        if self._second and (heat > 0).any():
            batch = self._drawn(batch, heat[:, None])
        return batch[places]

    def _drawn(self, batch: np.ndarray, heat: np.ndarray) -> np.ndarray:
        """Apply to randomly sampled rows the processors that expect logits divided by the
        temperature."""
        scale = np.where(heat > 0, heat, 1)
        drawn = batch / scale
        for one in self._second:
            drawn = applied(one, drawn)
        return np.where(heat > 0, drawn * scale, batch)


def applied(processor: LogitsProcessor, logits: np.ndarray) -> np.ndarray:
    """A processor's result, checked for shape."""
    found = np.asarray(processor.apply(logits), np.float32)
    if found.shape != logits.shape:
        raise ConfigError(
            f"logits_processors: {type(processor).__qualname__}.apply returned an array of shape "
            f"{found.shape}; expected that of the logits, {logits.shape}."
        )
    return found
