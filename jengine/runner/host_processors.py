"""Runs host logits processors (vLLM's interface) on the logits of a step.

In: plans, the logits of their sampling slots, and the tokens sampled. Out: processed logits. Must
not know the model or the sampler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from jengine.errors import ConfigError
from jengine.logits_processor import (
    AddedRequest,
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
    MovedRequest,
    ProcessorConfig,
)
from jengine.plan import NewRow, Plan, RowSampling
from jengine.sampling_params import ROW_PARAMETERS, SamplingParams


class HostProcessors:
    """One runner's processors, an instance per class."""

    def __init__(self, classes: Sequence[type[LogitsProcessor]], config: ProcessorConfig) -> None:
        processors = [one(config, "cpu", False) for one in classes]
        # Argmax-invariant ones run last, on logits divided by the temperature.
        self._first = [one for one in processors if not one.is_argmax_invariant()]
        self._second = [one for one in processors if one.is_argmax_invariant()]
        self._batch = HostBatch()
        self._sampled: list[BatchRow] = []  # rows that the last step sampled

    def read(self, tokens: np.ndarray) -> None:
        """Record the tokens sampled by the last step, one per row."""
        self._batch.take(self._sampled, tokens.tolist())
        self._sampled = []

    def apply(self, plan: Plan, logits: np.ndarray) -> np.ndarray:
        """Apply processors to a plan's logits, f32 [sampled rows, vocabulary]."""
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
        heat[places] = [row.sampling.temperature for row in self._sampled]
        if self._second and (heat > 0).any():
            batch = self._drawn(batch, heat[:, None])
        return batch[places]

    def _drawn(self, batch: np.ndarray, heat: np.ndarray) -> np.ndarray:
        """Apply the argmax-invariant processors to rows that are not greedy."""
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


class BatchRow:
    """A request's place in the batch, its parameters and tokens."""

    __slots__ = ("output_ids", "place", "prompt_ids", "sampling")

    def __init__(self, new: NewRow) -> None:
        known = new.token_ids
        self.prompt_ids, self.output_ids = known[: new.prompt_length], known[new.prompt_length :]
        self.sampling = new.sampling
        self.place = -1


class HostBatch:
    """vLLM's persistent batch: maps engine rows to dense places."""

    def __init__(self) -> None:
        self.rows: dict[int, BatchRow] = {}  # by engine row
        self._places: list[int] = []  # engine row of each place

    def __len__(self) -> int:
        return len(self._places)

    def update(self, plan: Plan) -> BatchUpdate | None:
        """Apply a plan's released, new and appended rows; None if the batch is unchanged."""
        started = {new.row for new in plan.new_rows}
        gaps = sorted(
            self.rows.pop(row).place for row in {*plan.released, *started} if row in self.rows
        )
        added = [self._add(new, gaps) for new in plan.new_rows]
        removed, moved = self._fill(gaps)
        for known in plan.known:
            row = self.rows[known.row]
            row.output_ids[known.start - len(row.prompt_ids) :] = known.token_ids
        if not (added or removed or moved):
            return None
        return BatchUpdate(len(self), removed, added, moved)

    def _add(self, new: NewRow, gaps: list[int]) -> AddedRequest:
        row = self.rows[new.row] = BatchRow(new)
        if gaps:
            row.place = gaps.pop(0)
            self._places[row.place] = new.row
        else:
            row.place = len(self._places)
            self._places.append(new.row)
        return row.place, params_of(new.sampling), row.prompt_ids, row.output_ids

    def _fill(self, gaps: list[int]) -> tuple[list[int], list[MovedRequest]]:
        """Compact the batch: move the last request into each gap. Returns the places dropped at the
        end, and the moves."""
        removed, moved = list[int](), list[MovedRequest]()
        while gaps:
            last = len(self._places) - 1
            if gaps[-1] == last:
                removed.append(gaps.pop())
            else:
                gap = gaps.pop(0)
                owner = self._places[gap] = self._places[last]
                self.rows[owner].place = gap
                moved.append((last, gap, MoveDirectionality.UNIDIRECTIONAL))
            self._places.pop()
        return removed, moved

    @staticmethod
    def take(owners: Iterable[BatchRow], tokens: Iterable[int]) -> None:
        """Append sampled tokens to these requests; negative ones are skipped."""
        for row, token in zip(owners, tokens, strict=True):
            if token >= 0:
                row.output_ids.append(token)


def params_of(sampling: RowSampling) -> SamplingParams:
    """A request's parameters, as far as a step knows them: no stop strings, no limits."""
    return SamplingParams(
        **{name: getattr(sampling, name) for name in ROW_PARAMETERS},
        max_tokens=None,
        logit_bias={**sampling.logit_bias} or None,
        allowed_token_ids=sampling.allowed_ids,
        stop_token_ids=sampling.stop_ids,
        logprobs=sampling.logprobs,
        logprob_token_ids=sampling.logprob_ids or None,
        extra_args=sampling.extra_args,
    )
