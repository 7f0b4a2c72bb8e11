"""Batch positions as host logits processors (vLLM's interface) see them: dense, without gaps.

In: plans, and sampled tokens. Out: `BatchUpdate`s, and each row's batch position. Must not know
logits, steps or devices.
"""

from __future__ import annotations

from collections.abc import Iterable

from jengine.logits_processor import (
    AddedRequest,
    BatchUpdate,
    MoveDirectionality,
    MovedRequest,
)
from jengine.plan import NewRow, Plan, RowSampling
from jengine.sampling_params import ROW_PARAMETERS, SamplingParams


class BatchRow:
    """A request's place in the batch, its parameters and tokens."""

    __slots__ = ("output_ids", "place", "prompt_ids", "sampling")

    def __init__(self, new: NewRow) -> None:
        known = new.token_ids
        self.prompt_ids, self.output_ids = known[: new.prompt_length], known[new.prompt_length :]
        self.sampling = new.sampling
        self.place = -1


class HostBatch:
    """Tracks plans and keeps the batch dense."""

    def __init__(self) -> None:
        self.rows: dict[int, BatchRow] = {}  # by row of the engine
        self._places: list[int] = []  # the row at each place

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
